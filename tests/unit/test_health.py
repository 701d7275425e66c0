"""Liveness follows the loops, not the process (O30)."""

import json
import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry

from poolkeeper_operator.runtime.health import HealthServer, Loops


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def loops():
    return Loops(Clock())


@pytest.fixture
def server(loops):
    made = HealthServer("127.0.0.1:0", loops, CollectorRegistry())
    yield made
    made.close()


def ask(server, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_one_loop_that_hangs_is_enough_to_be_dead(loops, server):
    """Each loop has an allowance of its own; the one that is overdue is named."""
    loops.ticked("re-list", 600)
    loops.ticked("database a/main", 75)
    assert ask(server, "/livez")[0] == 200
    loops._clock.now += 100
    status, body = ask(server, "/livez")
    assert status == 503
    assert json.loads(body)["reasons"] == ["database a/main: last went round 100 s ago, allowed are 75 s"]


def test_a_loop_that_ended_is_not_missed(loops, server):
    """A Database that was deleted does not kill the operator."""
    loops.ticked("database a/main", 75)
    loops.ended("database a/main")
    loops._clock.now += 1000
    assert ask(server, "/livez")[0] == 200


def test_ready_says_why_not(loops, server):
    """Readiness carries the reason until there is none."""
    status, body = ask(server, "/readyz")
    assert (status, json.loads(body)["reasons"]) == (503, ["starting"])
    loops.ready = None
    assert ask(server, "/readyz")[0] == 200


def test_other_paths_are_not_found(server):
    """And the answer names those that are."""
    assert ask(server, "/")[0] == 404
