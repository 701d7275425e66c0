"""The conditions of a TaskQueue or Database that tell of trouble, each with its cause and a remedy in one sentence (O25). Pure.

Guarantees: set and cleared by the figures alone; the sentence holds no figure that moves with every reading (but for the number of
dead letters), so an unchanged trouble is an unchanged status. What stands in `trouble` is what metrics say, by the same words.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from poolkeeper.doctor import sessions
from poolkeeper.durations import format_duration
from poolkeeper.store.rows import QueueStats, Stats, TypeStats
from poolkeeper_operator.act.verdicts import truth
from poolkeeper_operator.decide import trouble as decide
from poolkeeper_operator.decide.conditions import Condition, coarse, cut
from poolkeeper_operator.decide.storm import storms
from poolkeeper_operator.resources.taskqueue import TaskQueueSpec

TOO_MANY, TOO_OLD = "DeadLettersTooMany", "DeadLettersTooOld"
KINDS = (
    "DeadLettersGrowing",
    TOO_MANY,
    TOO_OLD,
    "LeaseTooShort",
    "WorkersDying",
    "NoCapableWorker",
    "RetryStorm",
    "SchedulesLate",
    "WebhookFailing",
)
"""All that `status.trouble` and the metric may say."""

VACUUM = "VacuumHeld"
"""The same of a Database."""

NAMED = 5  # task types in one sentence
SHOWN = 200  # bytes of what others say


@dataclass(frozen=True)
class Hook:
    """How a queue's webhook stands: batches that wait for it, whether its last tries failed (if any were made), and how."""

    waiting: int
    failing: bool
    known: bool
    problem: str = ""


@dataclass(frozen=True)
class Trouble:
    """What is wrong with a queue: its conditions, and the words for those that hold."""

    conditions: list[Condition]
    kinds: tuple[str, ...]


def trouble(
    stats: QueueStats,
    spec: TaskQueueSpec,
    present: Mapping[str, Any],
    *,
    nobody: Sequence[TypeStats] = (),
    fell: bool = False,
    hook: Hook | None = None,
) -> Trouble:
    """Judge one reading of a queue; `present`: the status that was written last, `fell`: there are fewer dead letters than five minutes ago."""
    was = {c["type"] for c in present.get("conditions") or [] if c["status"] == "True"}
    said = set(str(present.get("trouble") or "").split(","))
    letters, found = _dead_letters(stats, spec, said)
    conditions = [
        letters,
        _growing("DeadLettersGrowing" in was, stats, spec, fell=fell),
        _lease_too_short(stats, spec),
        _workers_dying("WorkersDying" in was, stats),
        _nobody_can("NoCapableWorker" in was, nobody),
        _retry_storm("RetryStorm" in was, stats),
        _schedules_late(stats),
    ]
    if hook is not None:
        conditions.append(_webhook("WebhookFailing" in was, hook))
    holds = found | {c.type for c in conditions if c.status == "True"}
    return Trouble(conditions, tuple(kind for kind in KINDS if kind in holds))


def in_words(kinds: Sequence[str]) -> str:
    """What stands in `status.trouble`; `None` where all is well, so that the column is never empty."""
    return ",".join(kinds) or "None"


def _dead_letters(stats: QueueStats, spec: TaskQueueSpec, said: Iterable[str]) -> tuple[Condition, set[str]]:
    """The condition, and which of its thresholds are passed."""
    if not stats.dead:
        return Condition("DeadLetters", "False", "None", "no dead letters"), set()
    alert = spec.dead_letter.alert
    look = f"`poolkeeper dlq list --queue {stats.namespace}/{stats.name}`"
    text = f"{stats.dead} dead letters wait for a person; {look}"
    reason, found = "WaitingForAPerson", set()
    if decide.too_old(oldest=stats.dead_oldest, most=alert.age):
        reason = "TooOld"
        found.add(TOO_OLD)
        text = f"{text}; the oldest waits for longer than deadLetter.alert.age ({format_duration(alert.age or timedelta())})"
    if decide.too_many(TOO_MANY in said, total=stats.dead, most=alert.count):
        reason = "TooMany"
        found.add(TOO_MANY)
        text = f"{text}; deadLetter.alert.count is {alert.count}"
    return Condition("DeadLetters", "True", reason, text), found


def _growing(was: bool, stats: QueueStats, spec: TaskQueueSpec, *, fell: bool) -> Condition:
    threshold = spec.dead_letter.alert.growth_per_minute
    if not decide.growing(
        was, last_minute=stats.dead_recent, five_minutes=stats.dead_lately, threshold=threshold, fell=fell
    ):
        return Condition("DeadLettersGrowing", "False", "BelowThreshold", f"fewer than {threshold} new ones a minute")
    text = (
        f"{threshold} or more tasks a minute become dead letters, and nobody takes them away as fast; see what they have in common "
        f"(`poolkeeper dlq list --queue {stats.namespace}/{stats.name}`), pause the queue or that type of task until it is mended, "
        "then requeue them"
    )
    return Condition("DeadLettersGrowing", "True", "FasterThanThreshold", text)


def _lease_too_short(stats: QueueStats, spec: TaskQueueSpec) -> Condition:
    if not decide.lease_too_short(live=stats.expired.live):
        text = "no worker that lives lost a lease within ten minutes"
        return Condition("LeaseTooShort", "False", "LeasesKept", text)
    text = (
        "workers that live lost leases within ten minutes, so tasks may have run twice: a process did not get to renew for "
        f"visibilityTimeout ({format_duration(spec.visibility_timeout)}); look for code that holds the interpreter's lock, CPU limits that "
        "throttle, frozen nodes or a slow way to the database, or lengthen spec.visibilityTimeout"
    )
    return Condition("LeaseTooShort", "True", "ExpiredWhileAlive", text)


def _workers_dying(was: bool, stats: QueueStats) -> Condition:
    if not decide.workers_die(was, dead=stats.expired.dead):
        text = f"fewer than {decide.DYING} deliveries ended with their worker within ten minutes"
        return Condition("WorkersDying", "False", "Calm", text)
    cause = f" (most of them: {cut(stats.expired.cause, SHOWN)})" if stats.expired.cause else ""
    text = (
        f"{decide.DYING} or more deliveries ended with their worker within ten minutes{cause}: the processes die, or are cut off; "
        "`kubectl describe pod` and `poolkeeper task timeline` of one tell how: raise the memory limit where it is OOMKilled, run what "
        "kills them isolated, or see to the nodes"
    )
    return Condition("WorkersDying", "True", "ExpiredWithWorker", text)


def _nobody_can(was: bool, nobody: Sequence[TypeStats]) -> Condition:
    if not decide.nobody_can(was, [each.oldest if each.ready else None for each in nobody]):
        return Condition(
            "NoCapableWorker", "False", "AllCovered", "no task waits for long for a worker that can run its type"
        )
    types = sorted({each.type for each in nobody})
    more = f" and {len(types) - NAMED} more" if len(types) > NAMED else ""
    text = (
        f"tasks of type {', '.join(types[:NAMED])}{more} wait, and no worker of any pool can run them; roll out a build that has the "
        "type (and taskTypes and tenants of a pool that let it in), or cancel them"
    )
    return Condition("NoCapableWorker", "True", "NobodyCanRun", text)


def _retry_storm(was: bool, stats: QueueStats) -> Condition:
    if not storms(was, stats.held_back.retry_share, stats.oldest_retry):
        text = "retries do not wait because of their share of the claims"
        return Condition("RetryStorm", "False", "WithinShare", text)
    text = (
        "more tasks that have failed before are ready than their share of the claims allows, so they wait for first deliveries; "
        "mend what fails (`poolkeeper task timeline` of one says the error), lengthen spec.backoff, or raise spec.retrySharePercent"
    )
    return Condition("RetryStorm", "True", "ShareExceeded", text)


def _schedules_late(stats: QueueStats) -> Condition:
    found = stats.schedules
    name = f"{stats.namespace}/{stats.name}"
    reason, text = "OnTime", "every slot was fired in time"
    if found.refused:
        reason = "SlotsRefused"
        why = cut(found.why or "no reason was told", SHOWN)
        text = (
            f'the slots of schedule "{found.first_refused}"{_others(found.refused)} are refused: {why}; mend the schedule or the '
            f"queue's policy (`poolkeeper schedule list {name}`); it is tried again by itself"
        )
    elif found.late:
        reason = "SlotsLate"
        text = (
            f'a slot of schedule "{found.first_late}"{_others(found.late)} is due for two minutes, and nobody fired it; see that a worker '
            f"of the queue runs and whether the database keeps up (`poolkeeper schedule list {name}`)"
        )
    return Condition("SchedulesLate", truth(reason != "OnTime"), reason, text)


def _webhook(was: bool, hook: Hook) -> Condition:
    failing = bool(hook.waiting) and (hook.failing or (was and (not hook.known or bool(hook.problem))))
    if not failing:
        return Condition("WebhookFailing", "False", "Taken", "the webhook takes what it is told of dead letters")
    problem = hook.problem or "it was not tried since the operator started"
    text = (
        f"the webhook does not take what it is told of dead letters: {problem}; see to its receiver, or correct spec.deadLetter.webhook; it is "
        "tried again by itself, for a week"
    )
    return Condition("WebhookFailing", "True", "NotTaken", text)


def vacuum_held(stats: Stats, present: Mapping[str, Any]) -> Condition:
    """The condition of a Database: who keeps dead rows in its tables, if anybody does for long."""
    was = any(c["type"] == VACUUM and c["status"] == "True" for c in present.get("conditions") or [])
    holder = stats.vacuum
    if holder is None or not decide.vacuum_held(was, seconds=holder["seconds"], xids=holder["xids"]):
        return Condition(VACUUM, "False", "Free", "nobody that is seen keeps dead rows in the tables for long")
    since = coarse(timedelta(seconds=holder["seconds"])) if holder["seconds"] else "millions of transactions"
    who, remedy = sessions.holder_in_words(holder)
    text = f"{who} keeps dead rows in the tables for {since}, so claims become slow; {remedy}"
    return Condition(VACUUM, "True", "HeldBack", text)


def _others(count: int) -> str:
    return f" and others ({count})" if count > 1 else ""
