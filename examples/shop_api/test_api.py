"""The API on a real Postgres, which the kit's fixtures bring; its tasks are worked off by the kit as well."""

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from api import api
from fastapi.testclient import TestClient
from handlers import app, ship

from poolkeeper.testing import Kit

HERE = Path(__file__).parent


def poolkeeper(*arguments):
    """The command line."""
    subprocess.run([sys.executable, "-m", "poolkeeper", *arguments], check=True)


@pytest.fixture
def shop(poolkeeper_dsn, monkeypatch):
    monkeypatch.setenv("POOLKEEPER_DSN", poolkeeper_dsn)
    poolkeeper("queue", "apply", HERE / "queue.yaml")
    with TestClient(api, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def database(poolkeeper_dsn, shop):
    with psycopg.connect(poolkeeper_dsn, autocommit=True) as conn:
        yield conn


@pytest.fixture
def kit(poolkeeper_dsn):
    with Kit(app, dsn=poolkeeper_dsn) as made:
        yield made


def counts(database):
    """How many orders and tasks there are."""
    return database.execute(
        "SELECT (SELECT count(*) FROM shop_order), (SELECT count(*) FROM poolkeeper.tasks)"
    ).fetchone()


def test_an_order_is_a_row_and_a_task(shop, database, kit):
    answer = shop.post("/orders", json={"item": "tea"})
    assert (answer.status_code, answer.json()["state"]) == (202, "accepted")
    assert shop.get("/orders/1").json() == {"order": 1, "state": "ready", "result": None}
    (task,) = database.execute("SELECT task FROM shop_order").fetchone()
    assert kit.deliver(task).outcome == "succeeded"
    assert shop.get("/orders/1").json() == {"order": 1, "state": "succeeded", "result": "parcel 1"}


def test_an_order_that_waits_can_be_canceled(shop):
    shop.post("/orders", json={"item": "tea"})
    assert shop.delete("/orders/1").json()["state"] == "canceled"
    again = shop.delete("/orders/1")
    assert (again.status_code, again.json()["code"]) == (409, "already_ended")
    assert shop.get("/orders/2").status_code == 404


def test_a_paused_queue_takes_neither_row_nor_task(shop, database):
    poolkeeper("queue", "pause", "orders")
    answer = shop.post("/orders", json={"item": "tea"})
    assert (answer.status_code, answer.json()["code"]) == (503, "queue_paused")
    assert counts(database) == (0, 0)


def test_what_fails_at_the_commit_was_never_accepted(shop, database):
    database.execute("ALTER TABLE shop_order ADD CONSTRAINT one_of_each UNIQUE (item) DEFERRABLE INITIALLY DEFERRED")
    assert shop.post("/orders", json={"item": "tea"}).status_code == 202
    assert shop.post("/orders", json={"item": "tea"}).status_code == 500
    assert counts(database) == (1, 1)


def test_a_shipment_is_repeatable(poolkeeper_kit):
    poolkeeper_kit(app).run_twice(ship, {"order": 17})
