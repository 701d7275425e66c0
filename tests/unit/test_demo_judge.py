"""The demo's verdict: each fact that is missing is a violation with its own sentence."""

from dataclasses import replace
from typing import Any

import pytest
from examples.demo.facts import (
    Call,
    CallLog,
    Delivery,
    Exit,
    Facts,
    Limit,
    Promise,
    Refusal,
    Resize,
    Session,
    Task,
    most_at_once,
)
from examples.demo.judge import judge

PROMISE = Promise(
    keys=frozenset({"row-0000", "row-0001"}),
    poison="poison",
    steps=("plan", "write", "check"),
    concurrent_calls=2,
    max_deliveries=2,
    target_age=3.0,
    retry_after=1.0,
    image="sha256:built",
)


def calls(task: str, *begun: tuple[str, float, float], cut_off: int | None = None) -> tuple[Call, ...]:
    return tuple(Call(task, step, began, ended, number == cut_off) for number, (step, began, ended) in enumerate(begun))


KILLED = Task(
    "a", "row-0000", "agent.answer", "succeeded", None, 0.0,
    (
        Delivery(1, "first", 1.0, 1.0, 8.0, "expired", "lease_expired"),
        Delivery(2, "second", 9.0, 9.0, 12.0, "succeeded"),
    ),
)  # fmt: skip
OTHER = Task(
    "b", "row-0001", "agent.answer", "succeeded", None, 0.0, (Delivery(1, "second", 1.0, 1.0, 4.0, "succeeded"),)
)
POISON = Task(
    "p", "poison", "agent.poison", "dead", "deliveries_exhausted", 0.0,
    (
        Delivery(1, "third", 20.0, 20.0, 25.0, "expired"),
        Delivery(2, "second", 26.0, 26.0, 26.5, "failed", error="process_died"),
    ),
)  # fmt: skip
CALLS_OF_KILLED = calls(
    "a", ("plan", 1.0, 2.0), ("write", 2.1, 3.0), ("write", 9.1, 10.0), ("check", 10.1, 11.0), cut_off=1
)
CALLS_OF_OTHER = calls("b", ("plan", 1.0, 2.0), ("write", 2.1, 3.0), ("check", 3.1, 4.0))
GROWTH = {"applied": 2, "replicas": 0, "reason": "Backlog"}
GOOD = Facts(
    tasks=(KILLED, OTHER, POISON),
    sessions=(Session("first", "pod-1", 2), Session("second", "pod-2", 2), Session("third", "pod-1", 2)),
    decisions=(GROWTH,),
    limits=(Limit(3, 2),),
    calls=CALLS_OF_KILLED + CALLS_OF_OTHER,
    refusals=(Refusal("b", "check", 2.05),),
    dead_letter_events=("1 dead letter: agent.poison 1",),
    replicas=0,
    pods=0,
    resizes=(Resize(0.5, 2), Resize(30.0, 0)),
    exits=(Exit("pod-1", 137),),
    images=frozenset({"sha256:built"}),
)


def violations(facts: Facts) -> list[str]:
    return [finding.sentence for finding in judge(facts, PROMISE) if not finding.well]


def with_task(task: Task, **changes: Any) -> Facts:
    return replace(GOOD, tasks=tuple(replace(each, **changes) if each is task else each for each in GOOD.tasks))


def test_a_story_that_happened_has_no_violation() -> None:
    assert violations(GOOD) == []


def test_where_the_audit_log_is_out_of_reach_the_rest_is_still_judged() -> None:
    assert violations(replace(GOOD, resizes=None, exits=None, images=None)) == []


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (replace(GOOD, tasks=(KILLED, POISON)), "1 tasks of the trace were never accepted, among them row-0001"),
        (with_task(OTHER, state="running"), "lost 1"),
        (with_task(OTHER, state="failed"), "1 tasks ended as failed"),
        (replace(GOOD, decisions=()), "the pool never grew from zero"),
        (replace(GOOD, resizes=()), "no write that made the pool larger"),
        (replace(GOOD, limits=()), "the quota never limited the pool"),
        (replace(GOOD, calls=GOOD.calls + calls("c", ("plan", 1.0, 2.0))), "more than was promised"),
        (replace(GOOD, images=frozenset({"sha256:other"})), "ran image sha256:other, not sha256:built"),
        (replace(GOOD, images=frozenset()), "the pods ran no image"),
        (replace(GOOD, exits=()), "no container killed by SIGKILL"),
        (replace(GOOD, calls=tuple(replace(each, cut_off=False) for each in GOOD.calls)), "no task of the killed worker"),
        (replace(GOOD, tasks=(replace(KILLED, deliveries=KILLED.deliveries[1:]), OTHER, POISON)), "no worker was killed and resumed"),
        (replace(GOOD, tasks=(KILLED, OTHER)), "no poison task was submitted"),
        (with_task(POISON, state="succeeded"), "there is no dead letter of the poison task"),
        (with_task(POISON, deliveries=POISON.deliveries[:1]), "after 1 deliveries of 2"),
        (with_task(POISON, reason="max_age"), "became a dead letter (max_age)"),
        (with_task(OTHER, state="dead"), "other tasks dead-lettered: 1"),
        (replace(GOOD, dead_letter_events=("1 dead letter: agent.answer 1",)), "no Event tells of a dead letter"),
        (replace(GOOD, refusals=()), "never answered 429"),
        (replace(GOOD, refusals=(Refusal("b", "check", 2.5),)), "or sooner than after 1 s"),
        (replace(GOOD, refusals=(Refusal("b", "check", 3.5),)), "1 of these calls did not come back"),
        (replace(GOOD, replicas=1, pods=1), "the pool is not at zero: 1 pods wanted, 1 there"),
    ],
)  # fmt: skip
def test_what_did_not_happen_is_named(facts: Facts, sentence: str) -> None:
    assert any(sentence in each for each in violations(facts)), violations(facts)


def test_a_finished_step_that_runs_again_is_seen() -> None:
    """The task had gone on to its next step, so its first one was finished."""
    again = calls("b", ("plan", 1.0, 2.0), ("write", 2.1, 3.0), ("plan", 3.0, 3.05), ("check", 3.1, 4.0))
    assert violations(replace(GOOD, calls=CALLS_OF_KILLED + again)) == ["finished steps run again: 1"]


def test_a_call_after_success_is_a_finished_step_run_again() -> None:
    assert "finished steps run again: 1" in violations(
        replace(GOOD, calls=GOOD.calls + calls("b", ("check", 5.0, 6.0)))
    )


def test_a_call_made_twice_needs_a_death_that_explains_it() -> None:
    twice = calls("b", ("plan", 1.0, 2.0), ("write", 2.1, 2.2), ("write", 2.3, 3.0), ("check", 3.1, 4.0))
    found = violations(replace(GOOD, calls=CALLS_OF_KILLED + twice))
    assert found == ["1 calls were made twice although no worker of theirs died"]


def test_a_death_explains_one_call_per_slot_and_no_more() -> None:
    fewer = (Session("first", "pod-1", 0), *GOOD.sessions[1:])
    assert violations(replace(GOOD, sessions=fewer)) == [
        "calls cut off by a death and made again: 1, the lost slots were 2"
    ]


def test_the_poisons_own_work_is_no_kill_from_outside() -> None:
    """Neighbours of the poison lose their leases too; that must not pass for the kill."""
    neighbour = replace(KILLED, deliveries=(replace(KILLED.deliveries[0], session="third"), KILLED.deliveries[1]))
    found = violations(replace(GOOD, tasks=(neighbour, OTHER, POISON)))
    assert found == ["no worker was killed and resumed: every lost lease is the poison's own doing"]


def test_calls_that_touch_do_not_overlap() -> None:
    assert most_at_once(calls("a", ("plan", 0.0, 1.0), ("write", 1.0, 2.0))) == 1
    assert most_at_once(calls("a", ("plan", 0.0, 1.5), ("write", 1.0, 2.0))) == 2


def test_the_servers_log_becomes_calls_with_their_ends() -> None:
    entries: list[dict[str, Any]] = [
        {"at": 1.0, "call": 1, "what": "began", "task": "a", "step": "plan", "seconds": 1},
        {"at": 1.5, "what": "refused", "task": "b", "step": "plan", "seconds": 1},
        {"at": 1.6, "call": 2, "what": "began", "task": "c", "step": "plan", "seconds": 1},
        {"at": 2.0, "call": 1, "what": "answered"},
        {"at": 2.1, "call": 2, "what": "cut off"},
    ]
    log = CallLog.of(entries)
    assert log.calls == (Call("a", "plan", 1.0, 2.0, False), Call("c", "plan", 1.6, 2.1, True))
    assert log.refusals == (Refusal("b", "plan", 1.5),)
