"""When a queue is said to be in trouble, and in which words (O25): each sign on, off, and steady in between."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from poolkeeper.store.rows import HeldBack, QueueStats, TypeStats
from poolkeeper.store.signs import Expired, ScheduleTrouble
from poolkeeper_operator.act.trouble import KINDS, Hook, trouble
from poolkeeper_operator.decide import trouble as decide
from poolkeeper_operator.resources import TaskQueueSpec

MINUTE = timedelta(minutes=1)
CALM = QueueStats(
    queue_id=1, namespace="team", name="mail", policy_version=1, paused=False, concurrency_max=None, ready=0, scheduled=0,
    leased=0, running=0, waiting=0, dead=0, dead_recent=0, dead_unannounced=False, oldest_runnable=None, next_due=None,
    lease_expiries=0, suspects=0, ordering=0, no_capable_worker=0, types=[],
)  # fmt: skip
OLD = TypeStats("demo.new", 3, timedelta(seconds=40), live=False, known=False)


def spec(**alert: Any) -> TaskQueueSpec:
    letter = {"owner": "o", "runbookURL": "https://r.example.com", "alert": alert}
    return TaskQueueSpec.model_validate({"databaseRef": {"name": "main"}, "deadLetter": letter})


def told(stats: QueueStats, present: dict[str, Any] | None = None, **more: Any) -> tuple[str, ...]:
    return trouble(stats, more.pop("spec", spec()), present or {}, **more).kinds


def said(*kinds: str) -> dict[str, Any]:
    """A status that says so already."""
    return {"trouble": ",".join(kinds), "conditions": [{"type": kind, "status": "True"} for kind in kinds]}


@pytest.mark.parametrize(
    ("was", "minute", "five", "fell", "says"),
    [
        (False, 4, 4, False, False),
        (False, 5, 5, False, True),
        (True, 4, 20, False, True),  # a pause of a minute is no end
        (True, 0, 13, False, True),
        (True, 0, 12, False, False),
        (False, 0, 24, False, False),
        (False, 50, 50, True, False),  # people are faster
        (True, 50, 50, True, False),
    ],
)
def test_growth_begins_at_the_threshold_and_ends_when_it_has_been_calm(was: bool, minute: int, five: int, fell: bool, says: bool) -> None:  # fmt: skip
    assert decide.growing(was, last_minute=minute, five_minutes=five, threshold=5, fell=fell) is says


@pytest.mark.parametrize(("was", "total", "says"), [(False, 9, False), (False, 10, True), (True, 9, True), (True, 8, False)])  # fmt: skip
def test_too_many_ends_when_a_fifth_is_gone(was: bool, total: int, says: bool) -> None:
    assert decide.too_many(was, total=total, most=10) is says
    assert decide.too_many(was, total=total, most=None) is False


@pytest.mark.parametrize(("was", "dead", "says"), [(False, 2, False), (False, 3, True), (True, 1, True), (True, 0, False)])  # fmt: skip
def test_one_lost_worker_is_no_trouble_three_are(was: bool, dead: int, says: bool) -> None:
    assert decide.workers_die(was, dead=dead) is says


def test_a_rollout_has_its_moment_before_tasks_without_a_worker_are_trouble() -> None:
    assert not decide.nobody_can(False, [timedelta(seconds=29)])
    assert decide.nobody_can(True, [timedelta(seconds=29)])
    assert decide.nobody_can(False, [timedelta(seconds=30)])
    assert not decide.nobody_can(True, [])


@pytest.mark.parametrize(
    ("seconds", "xids", "was", "says"),
    [(599, 5, False, False), (600, 5, False, True), (None, 9_999_999, False, False), (None, 10_000_000, False, True), (70, 5, True, True)],
)  # fmt: skip
def test_vacuum_is_held_as_the_doctor_has_it(seconds: float | None, xids: int, was: bool, says: bool) -> None:
    assert decide.vacuum_held(was, seconds=seconds, xids=xids) is says


WRONG = {
    "DeadLettersGrowing": replace(CALM, dead=9, dead_recent=9, dead_lately=9),
    "DeadLettersTooMany": replace(CALM, dead=10),
    "DeadLettersTooOld": replace(CALM, dead=1, dead_oldest=2 * MINUTE),
    "LeaseTooShort": replace(CALM, expired=Expired(live=1)),
    "WorkersDying": replace(CALM, expired=Expired(dead=3)),
    "NoCapableWorker": replace(CALM, ready=3, types=[OLD]),
    "RetryStorm": replace(CALM, ready=9, held_back=HeldBack(retry_share=3), oldest_retry=MINUTE),
    "WebhookFailing": replace(CALM, posts=2),
    "SchedulesLate": replace(CALM, schedules=ScheduleTrouble(late=2, first_late="nightly")),
}


def beside(kind: str) -> dict[str, Any]:
    """What the reading does not have."""
    hook = Hook(2, failing=kind == "WebhookFailing", known=True, problem="hooks.example.com answered 500")
    return {"nobody": [OLD] if kind == "NoCapableWorker" else [], "hook": hook}


@pytest.mark.parametrize("kind", KINDS)
def test_each_trouble_is_told_alone_and_gone_with_its_cause(kind: str) -> None:
    """Every kind has a case here; nothing else is said with it, and nothing is left of it."""
    bounds = spec(count=10, age="2m")
    assert told(WRONG[kind], spec=bounds, **beside(kind)) == (kind,)
    assert told(CALM, said(kind), spec=bounds, hook=Hook(0, failing=False, known=True)) == ()


def test_a_queue_that_is_well_says_so_in_every_condition() -> None:
    found = trouble(CALM, spec(), {})
    assert {c.status for c in found.conditions} == {"False"}
    assert len({c.type for c in found.conditions}) == 7


def test_the_thresholds_are_the_queues_own() -> None:
    """deadLetter.alert: count, growthPerMinute, age; without count and age only growth counts."""
    many = replace(CALM, dead=100, dead_oldest=timedelta(days=9))
    assert told(many) == ()
    assert told(many, spec=spec(count=100, age="216h")) == ("DeadLettersTooMany", "DeadLettersTooOld")
    rising = replace(CALM, dead=9, dead_recent=4, dead_lately=4)
    assert told(rising) == ()
    assert told(rising, spec=spec(growthPerMinute=4)) == ("DeadLettersGrowing",)


@pytest.mark.parametrize("kind", KINDS)
def test_each_sentence_names_a_remedy_and_fits(kind: str) -> None:
    """O2: a message of at most 1 KiB; a command or a field to change in each."""
    found = trouble(WRONG[kind], spec(count=10, age="2m"), {}, **beside(kind))
    (text,) = [c.message for c in found.conditions if c.status == "True" and c.type in {kind, "DeadLetters"}][-1:]
    assert len(text) < 600
    assert any(word in text for word in ("`poolkeeper ", "`kubectl ", "spec.", "roll out"))


def test_refused_slots_say_why() -> None:
    stats = replace(CALM, schedules=ScheduleTrouble(refused=3, first_refused="nightly", why="queue_limit (10)"))
    (found,) = [c for c in trouble(stats, spec(), {}).conditions if c.type == "SchedulesLate"]
    assert (found.status, found.reason) == ("True", "SlotsRefused")
    assert '"nightly" and others (3) are refused: queue_limit (10)' in found.message


@pytest.mark.parametrize(
    ("was", "hook", "says"),
    [
        (False, Hook(1, failing=False, known=True, problem="x answered 500"), False),  # once is no trouble
        (True, Hook(1, failing=False, known=True, problem="x answered 500"), True),  # and no end of it
        (True, Hook(1, failing=False, known=False), True),  # a new operator has not tried yet
        (True, Hook(1, failing=False, known=True), False),
        (True, Hook(0, failing=True, known=True, problem="x answered 500"), False),  # nothing waits any more
    ],
)
def test_a_webhook_fails_after_some_tries_and_until_it_takes_one(was: bool, hook: Hook, says: bool) -> None:
    present = said("WebhookFailing") if was else {}
    assert ("WebhookFailing" in told(CALM, present, hook=hook)) is says
