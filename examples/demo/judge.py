"""Did it happen as promised? Facts in, findings out. Pure.

Guarantees that a missing fact is a violation, never a silence: each function returns at least one finding. A step counts
as finished, seen from outside, once its task has gone on to the next one or has succeeded.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from .facts import Call, Facts, Promise, Task, most_at_once

ENDED = {"succeeded", "failed", "canceled", "dead"}
KILLED = 137  # 128 + SIGKILL


@dataclass(frozen=True)
class Finding:
    """One sentence of the summary, and whether it is as promised."""

    well: bool
    sentence: str


def judge(facts: Facts, promise: Promise) -> list[Finding]:
    """Everything that the demo claims, in the order of the story."""
    return [
        *accounts(facts, promise),
        *growth(facts),
        *quota(facts, promise),
        built(facts, promise),
        *kill(facts, promise),
        *repeats(facts, promise),
        *poison(facts, promise),
        refusals(facts, promise),
        *drain(facts),
        late(facts, promise),
    ]


def accounts(facts: Facts, promise: Promise) -> Iterator[Finding]:
    """Submitted = succeeded + dead, lost 0."""
    found = Counter(task.key for task in facts.tasks)
    missing = sorted((promise.keys | {promise.poison}) - found.keys())
    if missing:
        yield Finding(False, f"{len(missing)} tasks of the trace were never accepted, among them {missing[0]}")
    states = Counter(task.state for task in facts.tasks)
    lost = sum(count for state, count in states.items() if state not in ENDED)
    others = states["failed"] + states["canceled"]
    sums = f"submitted {len(facts.tasks)} = succeeded {states['succeeded']} + dead {states['dead']}"
    if others:
        yield Finding(False, f"{sums} does not add up: {others} tasks ended as failed or canceled")
    yield Finding(lost == 0, f"{sums}, lost {lost}")


def growth(facts: Facts) -> Iterator[Finding]:
    """From zero to n, because of age."""
    asked = [each for each in facts.decisions if each["applied"] > each["replicas"]]
    why = Counter(each["reason"] for each in asked)
    first = next((each for each in asked if each["replicas"] == 0), None)
    if first is None or not (why["Backlog"] or why["Age"]):
        yield Finding(False, "the pool never grew from zero for the sake of waiting tasks")
        return
    if facts.resizes is None:
        yield Finding(True, f"grew from 0 to {max(each['applied'] for each in asked)} pods by the age of what waited")
        return
    sizes = [resize.replicas for resize in facts.resizes]
    if not sizes or max(sizes) == 0:
        yield Finding(False, "the API server saw no write that made the pool larger than zero")
        return
    yield Finding(True, f"grew from 0 to {max(sizes)} pods by the age of what waited, in {_growths(sizes)} writes")


def quota(facts: Facts, promise: Promise) -> Iterator[Finding]:
    """Capped by the quota: in the decisions, and in what the provider saw."""
    if facts.limits:
        most = max(facts.limits, key=lambda each: each.wanted)
        yield Finding(True, f"wanted {most.wanted} pods and had {most.limited}: the provider's quota allows no more")
    else:
        yield Finding(False, "the quota never limited the pool: no decision and no status names ProviderQuota")
    peak = most_at_once(facts.calls)
    limit = promise.concurrent_calls
    over = "" if peak <= limit else ", which is more than was promised"
    yield Finding(0 < peak <= limit, f"calls in flight at once: at most {peak}, the quota is {limit}{over}")


def built(facts: Facts, promise: Promise) -> Finding:
    """What ran is what was built from the sources here."""
    if facts.images is None:
        return Finding(True, "which image the pods ran is not in reach here")
    well = facts.images == {promise.image}
    return Finding(
        well, f"the pods ran {_listed(facts.images)}{'' if well else f', not {promise.image[:19]}'}, built here"
    )


def kill(facts: Facts, promise: Promise) -> Iterator[Finding]:
    """A worker died by a SIGKILL that was not the poison's, and its task went on from its checkpoint."""
    killed = [session for session in lost_sessions(facts) if session not in _poisoned(facts, promise)]
    if not killed:
        yield Finding(False, "no worker was killed and resumed: every lost lease is the poison's own doing")
        return
    names = {session.id: session for session in facts.sessions}
    for session in killed:
        pod = names[session].pod or session
        yield _exit_code(facts, pod)
        resumed = [told for task in facts.tasks if (told := _resumption(task, session, facts.calls, promise))]
        if resumed:
            yield Finding(True, resumed[0])
        else:
            yield Finding(False, f"no task of the killed worker {pod} went on from its checkpoint")


def _exit_code(facts: Facts, pod: str) -> Finding:
    codes = [each.code for each in facts.exits or () if each.pod == pod]
    if facts.exits is None:
        return Finding(True, f"the worker in pod {pod} vanished (its exit code is not in reach here)")
    if KILLED not in codes:
        return Finding(
            False, f"pod {pod} lost its leases, but the kubelet reported no container killed by SIGKILL in it"
        )
    return Finding(True, f"a worker was killed in pod {pod}: the kubelet saw exit code {KILLED}")


def _resumption(task: Task, session: str, calls: tuple[Call, ...], promise: Promise) -> str | None:
    ended = next(
        (each.ended for each in task.deliveries if each.session == session and each.outcome == "expired"), None
    )
    if ended is None or task.state != "succeeded":
        return None
    mine = sorted((call for call in calls if call.task == task.id), key=lambda call: call.began)
    before = [call for call in mine if call.began < ended]
    after = [call for call in mine if call.began >= ended]
    if not after or not any(call.cut_off for call in before):
        return None
    first = promise.steps.index(after[0].step)
    if first == 0 or {call.step for call in before if not call.cut_off} != set(promise.steps[:first]):
        return None
    return f"task {task.key} was cut off in step {first + 1} and went on with it from its checkpoint, then succeeded"


def repeats(facts: Facts, promise: Promise) -> Iterator[Finding]:
    """Finished steps run again 0; calls made twice only where a worker died, at most one per slot."""
    lost = lost_sessions(facts)
    again, unexplained, cut = 0, 0, Counter[str]()
    for task in facts.tasks:
        mine = sorted((call for call in facts.calls if call.task == task.id), key=lambda call: call.began)
        done = _succeeded_at(task)
        furthest: tuple[int, Call | None] = (-1, None)
        for call in mine:
            step = promise.steps.index(call.step)
            if step < furthest[0] or call.began > done:
                again += 1
            elif step == furthest[0] and furthest[1]:
                session = _lost_in(task, furthest[1])
                cut[session or ""] += 1
                unexplained += session not in lost
            if step >= furthest[0]:
                furthest = (step, call)
    yield Finding(again == 0, f"finished steps run again: {again}")
    if unexplained:
        yield Finding(False, f"{unexplained} calls were made twice although no worker of theirs died")
    slots = {session.id: session.slots for session in facts.sessions}
    over = [session for session in lost if cut[session] > slots[session]]
    allowed = sum(slots[session] for session in lost)
    yield Finding(
        not over, f"calls cut off by a death and made again: {sum(cut.values())}, the lost slots were {allowed}"
    )


def poison(facts: Facts, promise: Promise) -> Iterator[Finding]:
    """One dead letter after exactly so many deliveries, an Event about it, and nobody else hurt."""
    found = next((task for task in facts.tasks if task.key == promise.poison), None)
    dead = [task for task in facts.tasks if task.state == "dead"]
    if found is None or found.state != "dead":
        yield Finding(False, "there is no dead letter of the poison task" if found else "no poison task was submitted")
    else:
        spent, most = len(found.deliveries), promise.max_deliveries
        began = sum(each.started is not None for each in found.deliveries)
        exact = spent == most == began and found.reason == "deliveries_exhausted"
        yield Finding(
            exact, f"the poison task became a dead letter ({found.reason}) after {spent} deliveries of {most}"
        )
    events = [text for text in facts.dead_letter_events if found and (found.type in text or found.id in text)]
    yield Finding(bool(events), f'an Event tells of it: "{events[0]}"' if events else "no Event tells of a dead letter")
    hurt = [task for task in dead if task.key != promise.poison]
    losses = [sum(each.outcome == "expired" for each in task.deliveries) for task in facts.tasks if task is not found]
    well = not hurt and max(losses, default=0) <= 1
    sentence = f"other tasks dead-lettered: {len(hurt)}; deliveries that another task lost to a death: at most {max(losses, default=0)}"
    yield Finding(well, sentence)


def refusals(facts: Facts, promise: Promise) -> Finding:
    """A 429 is no failure: the task comes back, and not sooner than it was told."""
    if not facts.refusals:
        return Finding(False, "the model never answered 429")
    begun: dict[tuple[str, str], list[float]] = {}
    for call in facts.calls:
        begun.setdefault((call.task, call.step), []).append(call.began)
    waits = [
        min((at - refusal.at for at in begun.get((refusal.task, refusal.step), []) if at > refusal.at), default=None)
        for refusal in facts.refusals
    ]
    hasty = sum(wait is None or wait < promise.retry_after for wait in waits)
    told = f"the model answered 429 {len(waits)} times"
    if hasty:
        return Finding(
            False, f"{told}; {hasty} of these calls did not come back, or sooner than after {promise.retry_after:g} s"
        )
    return Finding(True, f"{told}; each call came back, none sooner than after {promise.retry_after:g} s as told")


def drain(facts: Facts) -> Iterator[Finding]:
    """Back to zero, and no delivery was cut short on the way."""
    if facts.replicas or facts.pods:
        yield Finding(False, f"the pool is not at zero: {facts.replicas} pods wanted, {facts.pods} there")
    else:
        yield Finding(True, "the pool is at zero: no pod wanted, none there")
    handed = sum(each.outcome == "handed_back" for task in facts.tasks for each in task.deliveries)
    yield Finding(True, f"deliveries handed back by draining workers: {handed}")


def late(facts: Facts, promise: Promise) -> Finding:
    """Time above target age; a figure, not a promise: the quota leaves no other choice."""
    over = [task.waited - promise.target_age for task in facts.tasks if task.waited > promise.target_age]
    longest = max((task.waited for task in facts.tasks), default=0.0)
    return Finding(
        True,
        f"waited beyond targetAge {promise.target_age:g} s: {len(over)} tasks, {sum(over):.0f} s in all, "
        f"the longest {longest:.1f} s: pods had to start, then the quota was full",
    )


def lost_sessions(facts: Facts) -> list[str]:
    """Sessions whose leases expired: their process was gone."""
    lost = {each.session: None for task in facts.tasks for each in task.deliveries if each.outcome == "expired"}
    return list(lost)


def _poisoned(facts: Facts, promise: Promise) -> set[str]:
    return {
        each.session
        for task in facts.tasks
        if task.key == promise.poison
        for each in task.deliveries
        if each.outcome == "expired"
    }


def _lost_in(task: Task, call: Call) -> str | None:
    for each in task.deliveries:
        if each.claimed <= call.began <= each.ended:
            return each.session if each.outcome == "expired" else None
    return None


def _succeeded_at(task: Task) -> float:
    return next((each.ended for each in task.deliveries if each.outcome == "succeeded"), float("inf"))


def _listed(images: frozenset[str]) -> str:
    return ", ".join(f"image {each[:19]}" for each in sorted(images)) or "no image"


def _growths(sizes: list[int]) -> int:
    return sum(after > before for before, after in zip([0, *sizes], sizes, strict=False))
