"""What a provider said lowers all pools of its quota at once, and comes back with time (Q40, O15)."""

from typing import Any
from uuid import uuid4

import psycopg
import pytest

from poolkeeper.errors import Conflict, Forbidden, PoolkeeperError
from poolkeeper.provider import reported
from poolkeeper.store import Claimed, calls, run
from poolkeeper.store.signs import ProviderStats, ReportVerdict
from store.scene import Scene, await_blocked, meanwhile

QUOTA = "platform/api"


def use(scene: Scene, pool: str = "local/p", most: int = 8, quota: str = QUOTA, **policy: int) -> None:
    """What the operator tells of a pool with one provider."""
    entry: dict[str, Any] = {"name": "api", "quota": quota, "cut": 50, "floor": 10, "recover": 5, **policy}
    scene.ask("operator", calls.set_pool(pool, max_running=most))
    scene.ask("operator", calls.set_providers(pool, [entry]))


def tell(scene: Scene, of: Claimed, status: Any = 429, name: str = "api", **how: Any) -> ReportVerdict:
    return scene.ask("worker", calls.report_provider(of.task_id, of.token, reported(name, status, **how)))


def known(scene: Scene, quota: str = QUOTA) -> ProviderStats:
    (found,) = [each for each in scene.ask("operator", calls.stats(cluster=None)).providers if each.quota == quota]
    return found


def room(scene: Scene, pool: str = "local/p") -> int:
    """How many tasks a pool may run now: what a fresh worker is given, with all that run; nothing is kept."""
    conn = scene.connect("worker", autocommit=False)
    worker = scene.worker(pool=pool, concurrency=50, conn=conn)
    got = len(worker.claim(50))
    conn.rollback()
    conn.close()
    running: int = scene.value(
        "SELECT count(*) FROM poolkeeper.lease AS l JOIN poolkeeper.pool AS p ON p.id = l.pool_id WHERE p.name = %s",
        pool,
    )
    return got + running


def one_running(scene: Scene, pool: str = "local/p") -> Claimed:
    return scene.worker(pool=pool).take()


@pytest.fixture(autouse=True)
def plenty(scene: Scene) -> None:
    scene.queue()
    scene.submit_many(40)


def test_a_refusal_lowers_the_limit_at_once_and_time_raises_it(scene: Scene) -> None:
    """Q40: halved by a 429; five percent of the whole come back in a minute, and nobody has to write that."""
    use(scene)
    held = one_running(scene)
    assert room(scene) == 8
    assert tell(scene, held) == ReportVerdict(None, 50.0, 0.0)
    assert room(scene) == 4
    scene.advance(5 * 60)
    assert known(scene).percent == pytest.approx(75, abs=0.5)
    assert room(scene) == 6
    scene.advance(6 * 60)
    assert known(scene).percent == 100
    assert room(scene) == 8


def test_what_was_refused_together_is_one_event(scene: Scene) -> None:
    """Q40: eight calls that were in flight do not cut to a two hundredth; what is refused later cuts again."""
    use(scene)
    held = one_running(scene)
    for _ in range(8):
        assert tell(scene, held).percent == pytest.approx(50, abs=0.1)
    scene.advance(6)
    assert tell(scene, held).percent == pytest.approx(25, abs=0.5)
    assert known(scene).throttled == 9


def test_it_is_never_cut_below_the_floor_and_somebody_may_always_try(scene: Scene) -> None:
    """Q40: the floor of the quota, and one task of each pool, so that recovery is found out."""
    use(scene, cut=99, floor=20)
    held = one_running(scene)
    for _ in range(3):
        assert tell(scene, held).percent == pytest.approx(20, abs=1)
        scene.advance(6)
    assert room(scene) == 1
    use(scene, most=40, cut=99, floor=20)
    assert room(scene) == 8


def test_the_share_that_is_cut_is_the_quota_s_own(scene: Scene) -> None:
    """Q40: cut says how much is taken away, not how much is left."""
    use(scene, most=10, cut=20, recover=100)
    held = one_running(scene)
    assert tell(scene, held, "throttled").percent == 80
    assert room(scene) == 8
    scene.advance(20)
    assert known(scene).percent == 100


@pytest.mark.parametrize("status", [429, "throttled", 503])
def test_nothing_starts_before_retry_after(scene: Scene, status: Any) -> None:
    """Q40: no task of any pool of the quota; then the least that may be tried, and from then on it grows."""
    use(scene)
    use(scene, "local/other")
    held = one_running(scene)
    assert tell(scene, held, status, retry_after=30).closed_for == pytest.approx(30, abs=0.1)
    assert room(scene) == 1, "the one that runs"
    assert room(scene, "local/other") == 0
    scene.advance(29)
    assert room(scene, "local/other") == 0
    assert known(scene).percent == 50, "it does not grow while it is closed"
    scene.advance(2)
    assert room(scene, "local/other") == 4
    scene.advance(60)
    assert known(scene).percent == pytest.approx(55, abs=0.2)


def test_the_longest_retry_after_counts_and_is_bounded(scene: Scene) -> None:
    """Q40: a shorter one does not open earlier; a provider that says "in a year" is asked again in an hour."""
    use(scene)
    held = one_running(scene)
    tell(scene, held, retry_after=60)
    assert tell(scene, held, retry_after=1).closed_for == pytest.approx(60, abs=0.5)
    scene.advance(30)
    assert tell(scene, held).percent == 50, "what runs had begun before it was closed"
    assert tell(scene, held, retry_after=1e9).closed_for == 3600
    assert tell(scene, held, 200, retry_after=9000).closed_for == pytest.approx(3600, abs=0.5)


def test_workers_do_not_poll_while_it_is_closed_and_come_when_it_opens(scene: Scene) -> None:
    """Q40, Q15: a turn without room is told to come again as an idle one, and not after the opening."""
    use(scene)
    worker = scene.worker()
    held = worker.take()
    tell(scene, held, retry_after=60)
    assert worker.turn(want=5).come_again.total_seconds() > 1
    scene.advance(58)
    worker.renew(held.task_id)
    assert 0.5 < worker.turn(want=5).come_again.total_seconds() <= 2
    scene.advance(2.1)
    worker.renew(held.task_id)
    assert len(worker.claim(5)) == 3


def test_nothing_is_claimed_ahead_that_would_start_while_it_is_closed(scene: Scene) -> None:
    """Q16, Q40: what waits in a worker for a free slot starts by itself; pools with providers claim for free slots only."""
    scene.ask("operator", calls.set_pool("local/p", max_running=8))
    assert len(scene.worker().claim(5, slots=2)) == 5
    scene.ask("operator", calls.set_pool("local/other", max_running=8))
    use(scene, "local/other")
    assert len(scene.worker(pool="local/other").claim(5, slots=2)) == 2
    assert len(scene.worker().claim(3, slots=1)) == 3, "a pool without any goes on as before"


def test_all_pools_of_a_quota_are_lowered_and_no_other(scene: Scene) -> None:
    """Q40, P6: without the operator; neighbours with another quota or none notice nothing."""
    use(scene)
    use(scene, "team/b", most=6)
    use(scene, "team/c", quota="platform/else")
    scene.ask("operator", calls.set_pool("team/d", max_running=8))
    tell(scene, one_running(scene))
    assert [room(scene, pool) for pool in ("local/p", "team/b", "team/c", "team/d")] == [4, 3, 8, 8]


def test_the_least_of_several_quotas_counts(scene: Scene) -> None:
    """Q40: a pool that uses two providers keeps to both."""
    entry: dict[str, Any] = {"cut": 50, "floor": 10, "recover": 5}
    both = [{"name": "a", "quota": "x/a", **entry}, {"name": "b", "quota": "x/b", **entry}]
    scene.ask("operator", calls.set_pool("local/p", max_running=8))
    scene.ask("operator", calls.set_providers("local/p", both))
    held = one_running(scene)
    tell(scene, held, name="b")
    assert room(scene) == 4
    tell(scene, held, name="a", retry_after=9)
    assert room(scene) == 1
    scene.ask("operator", calls.set_providers("local/p", both[1:]))
    assert room(scene) == 4
    scene.ask("operator", calls.set_providers("local/p", []))
    assert room(scene) == 8


def test_other_answers_change_totals_only(scene: Scene) -> None:
    """Q40: reports of success and of other failures are counted, with what was used."""
    use(scene)
    held = one_running(scene)
    for status in (200, "ok", 304, 500, 503, "failed", 404):
        assert tell(scene, held, status, used={"tokens": 100}) == ReportVerdict(None, 100.0, 0.0)
    tell(scene, held, 200, used={"requests": 3})
    found = known(scene)
    assert (found.ok, found.failed, found.throttled, found.requests, found.tokens) == (4, 4, 0, 10, 700)
    assert found.cut_at is None
    assert room(scene) == 8


def test_a_stale_token_changes_nothing_and_is_told(scene: Scene) -> None:
    """Q18: whose lease has ended, or who guesses."""
    use(scene)
    worker = scene.worker()
    ended, lost = worker.claim(2)
    worker.succeed(ended)
    scene.advance(16)
    scene.sweep()
    unknown = lost._replace(task_id=uuid4())
    answers = [tell(scene, one, retry_after=30).code for one in (ended, lost, lost._replace(token="x" * 32), unknown)]
    assert answers == ["stale_token", "lease_expired", "stale_token", "unknown_task"]
    found = known(scene)
    assert (found.throttled, found.cut_at, found.retry_at) == (0, None, None)


def test_a_delivery_that_is_to_stop_may_still_tell(scene: Scene) -> None:
    """Q40: what a provider said is true, whatever became of the task meanwhile; the handler's own transaction keeps nobody waiting."""
    use(scene)
    held = one_running(scene)
    scene.ask("person", calls.cancel(held.task_id, who="p", why="w"))
    conn = scene.connect("worker", autocommit=False)
    run(conn, calls.succeed(held.task_id, held.token))
    assert tell(scene, held).percent == 50
    conn.rollback()


def test_a_name_that_the_pool_does_not_have_changes_nothing(scene: Scene) -> None:
    """Q40: also one that another pool has."""
    use(scene, "team/b")
    use(scene, "local/p")
    scene.ask("operator", calls.set_providers("local/p", []))
    assert tell(scene, one_running(scene)).code == "unknown_provider"
    assert tell(scene, one_running(scene, "team/b"), name="apis").code == "unknown_provider"
    assert known(scene).throttled == 0


def test_reports_at_once_are_one_cut(scene: Scene) -> None:
    """Q40: the second waits for the first, sees its cut, and does not open what that has closed."""
    use(scene)
    first, second = scene.worker().claim(2)
    conn = scene.connect("worker", autocommit=False)
    report = reported("api", 429, retry_after=60)
    assert run(conn, calls.report_provider(first.task_id, first.token, report)).percent == 50
    with meanwhile(lambda: tell(scene, second, retry_after=1)) as other:
        await_blocked(scene)
        assert room(scene) == 8, "nobody who claims waits for a report"
        conn.commit()
    assert other.result().percent == pytest.approx(50, abs=0.1)
    assert known(scene).retry_at == scene.value("SELECT cut_at + interval '60 s' FROM poolkeeper.provider")


BAD = {
    "status": ("'api', 'well', NULL, NULL", "HTTP status"), "status out of range": ("'api', '600', NULL, NULL", "HTTP status"),
    "no status": ("'api', NULL, NULL, NULL", "HTTP status"), "no name": ("NULL, '429', NULL, NULL", "name"),
    "retry before now": ("'api', '429', -1, NULL", "seconds from 0"), "retry never": ("'api', '429', 'NaN', NULL", "seconds from 0"),
    "used a list": ("'api', '429', NULL, '[1]'", "requests and tokens"), "used money": ("'api', '429', NULL, '{\"money\": 1}'", "requests and tokens"),
    "used less than nothing": ("'api', '429', NULL, '{\"tokens\": -1}'", "requests and tokens"),
    "used too much": ("'api', '429', NULL, '{\"tokens\": 1e30}'", "requests and tokens"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_nonsense_is_refused_with_a_sentence(scene: Scene, case: str) -> None:
    """Contract 9: in any language, before anything happens."""
    use(scene)
    held = one_running(scene)
    given, sentence = BAD[case]
    with pytest.raises(psycopg.Error, match=sentence):
        scene.actor("worker").execute(
            f"SELECT * FROM poolkeeper.report_provider(%s, %s, {given})", [held.task_id, held.token]
        )
    assert known(scene).requests == 0


@pytest.mark.parametrize(
    "wrong", [{"cut": 100}, {"cut": 0}, {"floor": 0}, {"recover": 101}, {"name": ""}, {"quota": 7}]
)
def test_providers_that_cannot_be_are_refused(scene: Scene, wrong: dict[str, Any]) -> None:
    """Contract 9."""
    entry: dict[str, Any] = {"name": "api", "quota": QUOTA, "cut": 50, "floor": 10, "recover": 5} | wrong
    with pytest.raises((PoolkeeperError, psycopg.Error), match="providers cannot be"):
        scene.ask("operator", calls.set_providers("local/p", [entry]))


def test_a_pool_does_not_set_its_own_providers(scene: Scene) -> None:
    """Q51, O29: only the operator that leads there, and it says whether something changed."""
    entry: dict[str, Any] = {"name": "api", "quota": QUOTA, "cut": 50, "floor": 10, "recover": 5}
    assert scene.ask("operator", calls.set_providers("team/p", [entry])) is True
    assert scene.ask("operator", calls.set_providers("team/p", [entry])) is False
    assert scene.ask("operator", calls.set_providers("team/p", [entry | {"floor": 20}])) is True
    with pytest.raises(Forbidden):
        scene.ask("worker", calls.set_providers("team/p", []))
    lead = calls.lead("c", "team", lease="pk/operator", epoch=1, holder="op-1")
    term = scene.ask("operator", lead)
    with pytest.raises(Conflict):
        scene.ask("operator", calls.set_providers("team/p", []))
    assert scene.ask("operator", calls.set_providers("team/p", [], term=term)) is True


def test_a_new_policy_keeps_what_was_cut(scene: Scene) -> None:
    """Q40: what a provider said stands, whatever the operator writes anew."""
    use(scene)
    tell(scene, one_running(scene), retry_after=30)
    use(scene, recover=50, floor=60)
    found = known(scene)
    assert (found.cut_to, found.percent) == (50, 60)
    assert room(scene) == 1
    scene.advance(60)
    assert known(scene).percent == pytest.approx(75, abs=1)
