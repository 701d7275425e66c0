"""Requests per window by the provider's own log, with real worker processes that come, die and go (Q40, quality 3)."""

import signal
from pathlib import Path

from fixtures.calls import Calls, model_server
from fixtures.workers import Stage, eventually
from poolkeeper.store import calls
from store.windowing import Use, entry, most_in_a_window, window

LIMIT, WIDTH = 12, 2.0
POOLS = ("default/pool", "default/other")


def use(stage: Stage) -> None:
    """What an operator tells: a task may ask twice."""
    for pool in POOLS:
        stage.ask(calls.set_pool(pool, max_running=100))
        stage.ask(calls.set_providers(pool, [entry(2, windows={"requests": window(LIMIT, WIDTH)})]))


def asked(served: Calls) -> list[Use]:
    return [(line["at"], 1) for line in served.lines() if line["what"] == "began"]


def test_no_window_of_the_provider_s_log_holds_more_than_the_limit(stage: Stage, tmp_path: Path) -> None:
    """Q40: three processes of two pools, handlers that report and handlers that do not, one killed at work and one drained; all work is done."""
    stage.apply(visibility_timeout="2s", max_deliveries=20)
    use(stage)
    with model_server(tmp_path / "provider.log") as served:
        told = stage.submit_many("t.asks", [0.05] * 24)
        silent = stage.submit_many("t.asks_twice", [0.02] * 12)
        for pool in (*POOLS, POOLS[0]):
            env = {"MODEL_URL": served.url, "POOLKEEPER_POOL": pool}
            stage.worker(env, concurrency=8, app="providing:app").ready()
        killed, drained, _ = stage.workers
        eventually(lambda: len(asked(served)) >= LIMIT, "a window's worth was asked")
        killed.signal(signal.SIGKILL)
        drained.signal(signal.SIGTERM)
        stage.worker({"MODEL_URL": served.url}, concurrency=8, app="providing:app").ready()
        eventually(lambda: stage.states() == {"succeeded": len(told) + len(silent)}, "all is done, without a hand")
        log = asked(served)
    assert len(log) >= len(told) + 2 * len(silent)
    assert most_in_a_window(log, WIDTH) <= LIMIT
    assert most_in_a_window(log, WIDTH) > LIMIT // 2, "there was something to judge"
    found = stage.ask(calls.stats(cluster=None)).providers
    assert [one.windows[0].limit for one in found] == [LIMIT]
