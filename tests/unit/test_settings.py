"""Contract 4: what a worker pod gets, and which words a mistake is answered with."""

from pathlib import Path

import pytest

from poolkeeper import Misconfigured
from poolkeeper.codes import Code
from poolkeeper.worker.load import load_app
from poolkeeper.worker.settings import find_dsn, read_settings

ENOUGH = {
    "POOLKEEPER_APP": "my_agent:app",
    "POOLKEEPER_QUEUES": "team-a/agents,reports",
    "POOLKEEPER_DSN": "postgresql://db/x",
}


def test_the_defaults_outside_kubernetes() -> None:
    """Contract 4: what is not set."""
    settings = read_settings(ENOUGH)
    assert settings.queues == ("team-a/agents", "default/reports")
    assert (settings.concurrency, settings.grace, settings.hand_back_margin) == (10, 30.0, 5.0)
    assert (settings.http_host, settings.http_port) == ("127.0.0.1", 8080)
    assert settings.pool.startswith("local/")
    assert settings.listens
    assert settings.task_types == ()


def test_every_variable_is_honoured() -> None:
    """Contract 4: changing it changes something."""
    settings = read_settings(
        {
            **ENOUGH,
            "POOLKEEPER_TASK_TYPES": "a, b",
            "POOLKEEPER_TENANTS_ONLY": '["acme", "a,b"]',
            "POOLKEEPER_TENANTS_EXCEPT": '["z"]',
            "POOLKEEPER_CONCURRENCY": "4",
            "POOLKEEPER_POOL": "team-a/agents",
            "POOLKEEPER_BUILD": "3fa9c1d2",
            "POOLKEEPER_IMAGE": "localhost/x:1",
            "POOLKEEPER_GRACE_PERIOD": "90",
            "POOLKEEPER_HAND_BACK_MARGIN": "7.5",
            "POOLKEEPER_POD_NAME": "p-1",
            "POOLKEEPER_NODE_NAME": "n-1",
            "POOLKEEPER_HTTP_ADDR": "0.0.0.0:0",
            "POOLKEEPER_POOLER": "transaction",
        }
    )
    assert settings.task_types == ("a", "b")
    assert (settings.tenants, settings.tenants_except) == (("acme", "a,b"), ("z",))
    assert (settings.concurrency, settings.pool, settings.build, settings.image) == (
        4,
        "team-a/agents",
        "3fa9c1d2",
        "localhost/x:1",
    )
    assert (settings.grace, settings.hand_back_margin) == (90.0, 7.5)
    assert (settings.pod["pod_name"], settings.pod["node_name"]) == ("p-1", "n-1")
    assert (settings.http_host, settings.http_port) == ("0.0.0.0", 0)
    assert not settings.listens


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("POOLKEEPER_APP", ""),
        ("POOLKEEPER_QUEUES", " , "),
        ("POOLKEEPER_CONCURRENCY", "0"),
        ("POOLKEEPER_CONCURRENCY", "-1"),
        ("POOLKEEPER_CONCURRENCY", "ten"),
        ("POOLKEEPER_GRACE_PERIOD", "30s"),
        ("POOLKEEPER_HTTP_ADDR", "localhost"),
        ("POOLKEEPER_HTTP_ADDR", "0.0.0.0:99999"),
        ("POOLKEEPER_POOLER", "session"),
        ("POOLKEEPER_QUEUES", "team-a/Mail"),
        ("POOLKEEPER_QUEUES", "a/b/c"),
        ("POOLKEEPER_QUEUES", "a';drop"),
        ("POOLKEEPER_QUEUES", "x" * 64),
        ("POOLKEEPER_POOL", "x" * 201),
        ("POOLKEEPER_POOL", "a\nb"),
        ("POOLKEEPER_CONCURRENCY", "9" * 5000),
        ("POOLKEEPER_CONCURRENCY", "\u0664"),
        ("POOLKEEPER_GRACE_PERIOD", "9" * 400),
        ("POOLKEEPER_HAND_BACK_MARGIN", "NaN"),
        ("POOLKEEPER_HTTP_ADDR", "localhost:" + "9" * 5000),
    ],
)
def test_a_wrong_value_is_refused_by_name(variable: str, value: str) -> None:
    """Contract 2: exit code 2."""
    with pytest.raises(Misconfigured, match=variable) as raised:
        read_settings({**ENOUGH, variable: value})
    assert raised.value.exit_code == 2


def test_a_zero_alone_is_a_free_port() -> None:
    """Contract 4: 0 = free port."""
    assert read_settings({**ENOUGH, "POOLKEEPER_HTTP_ADDR": "0"}).http_port == 0


def test_the_margin_is_never_more_than_half_of_the_grace() -> None:
    """Q48: else handlers would have no time at all."""
    assert read_settings({**ENOUGH, "POOLKEEPER_GRACE_PERIOD": "4"}).hand_back_margin == 2.0


def test_the_dsn_file_wins_and_is_read_anew_each_time(tmp_path: Path) -> None:
    """Contract 4: a rotated secret reaches a running worker."""
    file = tmp_path / "dsn"
    file.write_text("postgresql://db/one\n")
    dsn = find_dsn({"POOLKEEPER_DSN_FILE": str(file), "POOLKEEPER_DSN": "postgresql://db/other"})
    assert dsn.read() == "postgresql://db/one"
    file.write_text("postgresql://db/two")
    assert dsn.read() == "postgresql://db/two"
    file.write_text("")
    with pytest.raises(Misconfigured) as raised:
        dsn.read()
    assert raised.value.code == Code.DSN_MISSING
    file.unlink()
    with pytest.raises(Misconfigured, match=r"cannot be read.*mount the secret"):
        dsn.read()


def test_a_dsn_that_cannot_be_parsed_is_not_repeated() -> None:
    """Q54: it may hold a password."""
    with pytest.raises(Misconfigured) as raised:
        find_dsn({}, "password=hunter2 nonsense").read()
    assert raised.value.code == Code.DSN_INVALID
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("source", "name", "words"),
    [
        (None, "app_missing:app", "no module app_missing"),
        ("import app_missing_too", "app_a:app", "importing it failed: No module named 'app_missing_too'"),
        ("1 / 0", "app_b:app", "ZeroDivisionError"),
        ("", "app_c:app", 'no attribute "app"'),
        ("app = 5", "app_d:app", "app is a int"),
        ("from poolkeeper import Poolkeeper\napp = Poolkeeper()", "app_e:app", "no handler is registered"),
        ("", "app_f", "expected module:attribute"),
        ("def (", "app_g:app", "SyntaxError"),
    ],
)
def test_an_app_that_cannot_be_imported_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, name: str, words: str
) -> None:
    """Contract 2, app_not_importable: the cause is in the line."""
    monkeypatch.syspath_prepend(tmp_path)
    if source is not None:
        (tmp_path / f"{name.partition(':')[0]}.py").write_text(source)
    with pytest.raises(Misconfigured) as raised:
        load_app(name)
    assert raised.value.code == Code.APP_NOT_IMPORTABLE
    assert words in str(raised.value)
