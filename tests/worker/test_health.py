"""Q49: the port; and what is refused before anything starts."""

import socket

import pytest

from fixtures.workers import Stage


def test_metrics_tell_claims_settles_and_slots(stage: Stage) -> None:
    """Q49: read over HTTP as Prometheus does."""
    worker = stage.worker(concurrency=3).ready()
    for _ in range(3):
        stage.ends(stage.submit("t.count"))
    stage.ends(stage.submit("t.raises", "reject"), "failed")
    held = stage.submit("t.hold", "go")
    stage.note("in", held)
    text = worker.get("/metrics")[1]
    assert 'poolkeeper_worker_settles_total{outcome="rejected"} 1.0' in text
    assert 'poolkeeper_worker_settles_total{outcome="succeeded"} 3.0' in text
    assert "poolkeeper_worker_claims_total 5.0" in text
    assert "poolkeeper_worker_busy_slots 1.0" in text
    assert "poolkeeper_worker_slots 3.0" in text
    assert worker.get("/nowhere")[0] == 404
    assert worker.get("/livez") == (200, "ok\n")


@pytest.mark.parametrize(
    ("env", "code", "words"),
    [
        ({"POOLKEEPER_DSN": ""}, "dsn_missing", "POOLKEEPER_DSN"),
        ({"POOLKEEPER_DSN": "no dsn at all"}, "dsn_invalid", "POOLKEEPER_DSN"),
        ({"POOLKEEPER_DIRECT_DSN": "no dsn at all"}, "dsn_invalid", "POOLKEEPER_DIRECT_DSN"),
        ({"POOLKEEPER_DIRECT_DSN_FILE": "/nowhere"}, "dsn_missing", "POOLKEEPER_DIRECT_DSN_FILE"),
        ({"POOLKEEPER_QUEUES": ""}, "setting_invalid", "POOLKEEPER_QUEUES"),
        ({"POOLKEEPER_CONCURRENCY": "many"}, "setting_invalid", "POOLKEEPER_CONCURRENCY"),
        ({"POOLKEEPER_TASK_TYPES": "t.count,t.missing"}, "app_not_importable", "t.missing"),
    ],
)
def test_a_wrong_setting_ends_the_worker_at_once_with_one_line_that_names_it(
    stage: Stage, env: dict[str, str], code: str, words: str
) -> None:
    """Contract 2 and 4: exit code 2, no traceback."""
    worker = stage.worker(env)
    assert worker.wait() == 2
    assert f"error: {code}: " in worker.log
    assert words in worker.log
    assert "Traceback" not in worker.log


def test_a_port_in_use_is_named_with_its_variable(stage: Stage) -> None:
    """Q49: and the remedy."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        worker = stage.worker({"POOLKEEPER_HTTP_ADDR": f"127.0.0.1:{port}"})
        assert worker.wait() == 2
    assert f"POOLKEEPER_HTTP_ADDR 127.0.0.1:{port} cannot be used" in worker.log
