"""What is told of one pool's providers, or reported of one quota, changes no other (Q40, quality 3)."""

from typing import Any

from fixtures.neighbours import Crowd
from poolkeeper.provider import reported
from poolkeeper.store import calls


def entry(name: str, quota: str, **policy: int) -> dict[str, Any]:
    return {"name": name, "quota": quota, "cut": 50, "floor": 10, "recover": 5, **policy}


def quotas(crowd: Crowd) -> dict[str, Any]:
    return {row.quota: row for row in crowd.scene.rows("SELECT * FROM poolkeeper.provider")}


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {quota for quota in before | after if before.get(quota) != after.get(quota)}


def test_providers_are_of_one_pool_and_reports_of_one_quota(crowd: Crowd) -> None:
    """Q40: pools beside it, quotas of the same pool, names that two pools use for different quotas."""
    scene = crowd.scene
    scene.ask("operator", calls.set_providers("other/p", [entry("api", "b/api"), entry("mail", "a/mail")]))
    before = quotas(crowd)
    with crowd.untouched() as own:
        own.pools.add(crowd.pool_id())
        own.tables.add("provider")
        wanted = [entry("api", "a/api"), entry("mail", "a/mail")]
        assert scene.ask("operator", calls.set_providers("local/p", wanted)) is True
    assert changed(before, quotas(crowd)) == {"a/api"}
    with crowd.untouched():
        assert scene.ask("operator", calls.set_providers("local/p", wanted[::-1])) is False
    pools = {pool.pool: pool.providers for pool in scene.ask("operator", calls.stats(cluster=None)).pools}
    assert pools["local/p"] == {"api": "a/api", "mail": "a/mail"}
    assert pools["other/p"] == {"api": "b/api", "mail": "a/mail"}
    assert not pools["local/doomed"]
    held, beside = crowd.worker.claim(2)
    before = quotas(crowd)
    with crowd.untouched() as own:
        own.tables.add("provider")
        call = calls.report_provider(held.task_id, held.token, reported("api", 429, retry_after=9, used={"tokens": 3}))
        assert scene.ask("worker", call).code is None
    after = quotas(crowd)
    assert changed(before, after) == {"a/api"}
    assert (after["a/api"].throttled, after["a/api"].tokens, after["a/api"].requests) == (1, 3, 1)
    with crowd.untouched():
        for name, token in (("nobody", held.token), ("api", beside.token)):
            call = calls.report_provider(held.task_id, token, reported(name, 429, retry_after=9))
            assert scene.ask("worker", call).code in {"unknown_provider", "stale_token"}
    before = quotas(crowd)
    with crowd.untouched() as own:
        own.tables.add("provider")
        scene.ask(
            "operator", calls.set_providers("other/p", [entry("api", "b/api"), entry("mail", "a/mail", floor=20)])
        )
    assert changed(before, quotas(crowd)) == {"a/mail"}
    assert crowd.worker.claim(1) == [], "it is closed"
    assert len(crowd.far.claim(1)) == 1, "and this one is not"


def test_a_login_of_one_pool_is_told_of_no_quota(crowd: Crowd) -> None:
    """Q51: a provider is used by pools that it may not see."""
    scene = crowd.scene
    scene.ask("operator", calls.set_providers("local/p", [entry("api", "a/api")]))
    for limits, told in (({}, ["a/api"]), ({"pool": "local/p"}, []), ({"pool": "other/p"}, [])):
        scene.allow(scene.database.login("operator"), **limits)
        assert [row.quota for row in scene.ask("operator", calls.stats(cluster=None)).providers] == told
