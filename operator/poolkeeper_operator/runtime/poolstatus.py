"""The status of a WorkerPool. Pure.

Guarantees (O3): conditions as kstatus reads them; a lost reading or a changing size does not flip Ready, pods that cannot
start and closed quotas do; messages name the cause and what to do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from poolkeeper.durations import format_duration
from poolkeeper_operator.act import scaletarget, verdicts
from poolkeeper_operator.act.children import present_grace
from poolkeeper_operator.act.networkpolicy import Reach, egress
from poolkeeper_operator.decide.allowance import Allowance, exceeded
from poolkeeper_operator.decide.conditions import Condition, merge
from poolkeeper_operator.decide.decision import Decision
from poolkeeper_operator.decide.drained import Left, drained
from poolkeeper_operator.decide.grace import Grace
from poolkeeper_operator.decide.quota import Allotment
from poolkeeper_operator.decide.reasons import LimitedBy
from poolkeeper_operator.decide.signals import Mode
from poolkeeper_operator.observe.link import Link
from poolkeeper_operator.observe.pods import PodSeen, replacing, told
from poolkeeper_operator.observe.pods import refused as cannot_create
from poolkeeper_operator.resources import WorkerPoolSpec, WorkerPoolStatus
from poolkeeper_operator.resources.scaling import ScalingMode
from poolkeeper_operator.resources.workerpool import GraceStatus, Wanted
from poolkeeper_operator.runtime.freshness import Freshness
from poolkeeper_operator.runtime.kinds import POOL_LABEL
from poolkeeper_operator.runtime.memory import Memory
from poolkeeper_operator.runtime.scaler import Sized
from poolkeeper_operator.runtime.shares import CLOSED

TEMPLATE_REFUSED = "TemplateRefused"
NAMED = 5  # task types in one sentence


@dataclass(frozen=True)
class Seen:
    """All that a status is made from."""

    pool: Mapping[str, Any]
    spec: WorkerPoolSpec
    deployment: Mapping[str, Any]
    pods: Sequence[PodSeen]
    memory: Memory
    drains: Grace
    sized: Sized | None
    link: Link | None
    allotment: Allotment | None
    reach: Reach
    all_pods: int = 0  # terminating ones too
    refusal: str = ""  # what the API server refuses of its children
    unable: Sequence[str] = ()  # types of tasks in its queues that no worker of any pool can run
    held: tuple[str, str] | None = None  # why the pods keep the template that they have: reason and text
    throttled: str = ""  # what a provider of its refused, in words
    nodes_ignored: Sequence[str] = ()  # the rights that are missing to look at nodes
    allowed: Allowance | None = None  # the least grace that its nodes are known to allow


def status(seen: Seen, freshness: Freshness, now: datetime) -> dict[str, Any]:
    """The whole status to apply."""
    meta, present = seen.pool["metadata"], seen.pool.get("status") or {}
    figures = WorkerPoolStatus(
        observed_generation=meta["generation"],
        selector=f"{POOL_LABEL}={meta['name']}",
        replicas=len(seen.pods),
        ready_replicas=sum(pod.ready for pod in seen.pods),
        mode=_mode(seen),
        busy_slots=seen.sized.view.busy if seen.sized and seen.sized.view else present.get("busySlots"),
        wanted=_wanted(seen),
        grace=_grace(seen),
    ).as_status()
    conditions = [*_ready(seen), *_others(seen)]
    if seen.link is not None:
        conditions.append(freshness.condition(seen.link, now))
    gone = () if seen.nodes_ignored else ("NodesIgnored",)
    if seen.nodes_ignored:
        conditions.append(Condition("NodesIgnored", "True", "RightMissing", _ignored(seen.nodes_ignored)))
    return {
        **figures,
        "decisions": list(seen.memory.lines),
        "conditions": merge(
            verdicts.without(present.get("conditions") or [], *gone), conditions, generation=meta["generation"], now=now
        ),
    }


def refused(pool: Mapping[str, Any], ready: Condition, now: datetime, *more: Condition) -> dict[str, Any]:
    """The status of a pool that cannot be kept as it is: the old figures, and why."""
    meta, present = pool["metadata"], pool.get("status") or {}
    conditions = [
        *verdicts.stalled(ready.reason, ready.message),
        Condition("ScalingActive", "False", ready.reason, "not sized until Ready says otherwise"),
        *more,
    ]
    return {
        **present,
        "selector": f"{POOL_LABEL}={meta['name']}",
        "replicas": present.get("replicas", 0),
        "observedGeneration": meta["generation"],
        "conditions": merge(present.get("conditions") or [], conditions, generation=meta["generation"], now=now),
    }


def _ignored(lacks: Sequence[str]) -> str:
    return f"workers on nodes that are cordoned or tainted go on claiming until they are evicted: {'; '.join(lacks)}"


def _mode(seen: Seen) -> str:
    """The mode in force: External only once the size was handed over."""
    mode = seen.spec.scaling.mode
    if mode is ScalingMode.EXTERNAL and not seen.memory.external:
        return str((seen.pool.get("status") or {}).get("mode") or ScalingMode.AUTO)
    return str(mode)


def _wanted(seen: Seen) -> Wanted | None:
    if seen.sized is None:
        return None
    decision = seen.sized.decision
    return Wanted(
        replicas=decision.wanted,
        limited=decision.limited,
        limited_by=str(decision.limited_by),
        applied=int(seen.deployment["spec"].get("replicas") or 0),
        rate_limited_by=str(decision.rate_limited_by),
    )


def _grace(seen: Seen) -> GraceStatus:
    drains = seen.drains
    present = present_grace(seen.deployment)
    return GraceStatus(
        applied=f"{present}s",
        needed=format_duration(drains.needed),
        samples=drains.samples,
        censored=drains.censored,
        reason=str(drains.reason),
    )


def _ready(seen: Seen) -> list[Condition]:
    name = seen.pool["metadata"]["name"]
    if seen.held:
        return verdicts.stalled(*seen.held)
    if seen.refusal:
        return verdicts.stalled("Refused", seen.refusal)
    if seen.allotment is not None and seen.allotment.share.reason in CLOSED:
        return verdicts.stalled(str(seen.allotment.share.reason), f"no task starts: {seen.allotment.share.sentence}")
    working = seen.sized.view.sessions if seen.sized and seen.sized.view else {}
    stuck_pods = [pod for pod in seen.pods if pod.stuck and pod.name not in working]
    wanted = int(seen.deployment["spec"].get("replicas") or 0)
    refusal = cannot_create(seen.deployment) if len(seen.pods) < wanted else ""
    if stuck_pods or refusal:
        who = f"{len(stuck_pods)} of {max(wanted, len(seen.pods))} pods" if stuck_pods else f"{wanted} pods"
        cause = told(stuck_pods) or refusal
        return verdicts.stalled("PodsCannotStart", f'pool "{name}": {who} cannot start: {cause}')
    if seen.link is None:
        text = f'pool "{name}": its database is not ready; the condition Ready of the Database says why'
        return verdicts.waiting("DatabaseNotReady", text)
    found = verdicts.ready("InForce", f"{wanted} pods wanted" if wanted else _why_none(seen))
    if replacing(seen.deployment):
        found[1] = Condition(
            "Reconciling", "True", "RollingOut", "pods of the new template replace those of the old one"
        )
    return found


def _why_none(seen: Seen) -> str:
    decision = seen.sized.decision if seen.sized else None
    if seen.spec.scaling.mode is ScalingMode.HOLD_AND_DRAIN:
        return "no pods: scaling.mode is HoldAndDrain"
    if decision and decision.limited == 0 < decision.wanted:
        return f"no pods: {decision.limited_by} leaves none to the work that waits"
    if decision and _in_vain(seen):
        return "no pods wanted: what waits asks for none, the condition ScalingActive says why"
    return "no pods wanted: nothing to do"


def _others(seen: Seen) -> list[Condition]:
    conditions = [
        _scaling(seen),
        _quota(seen),
        _drain_budget(seen),
        *_drained(seen),
        egress(seen.spec, seen.reach),
        template(seen.held),
    ]
    if seen.sized is not None and seen.sized.view is not None:
        dead = seen.sized.view.backlog.dead
        text = f"{dead} dead letters in its queues wait for a person" if dead else "no dead letters in its queues"
        conditions.append(
            Condition("DeadLetters", verdicts.truth(bool(dead)), "WaitingForAPerson" if dead else "None", text)
        )
    return conditions


def template(held: tuple[str, str] | None) -> Condition:
    """Whether the platform's policy allows what template and isolation say (O7)."""
    if held and held[0] == TEMPLATE_REFUSED:
        return Condition(TEMPLATE_REFUSED, "True", "NotAllowed", held[1])
    return Condition(TEMPLATE_REFUSED, "False", "Allowed", "")


def _scaling(seen: Seen) -> Condition:
    if seen.sized is None:
        return Condition("ScalingActive", "False", "DatabaseNotReady", "the size stays: the queues cannot be read")
    decision, mode = seen.sized.decision, seen.spec.scaling.mode
    if (overruled := _overruled(seen)) is not None:
        return Condition("ScalingActive", "True", *overruled)
    if decision.blind:
        return Condition("ScalingActive", "False", "SignalLost", "the size stays: the queues cannot be read")
    if mode is ScalingMode.EXTERNAL:
        return Condition("ScalingActive", "True", _external(decision), decision.sentence)
    in_vain = _in_vain(seen) if mode is ScalingMode.AUTO else None
    # The sentence of the last change, not of this moment: a status must not move with every age.
    last = seen.memory.lines[0]["sentence"] if seen.memory.lines else "its size has not changed yet"
    reason = "Sized" if mode is ScalingMode.AUTO else str(decision.reason)
    return Condition("ScalingActive", "True", *(in_vain or (reason, last)))


def _overruled(seen: Seen) -> tuple[str, str] | None:
    """Reason and words for a size that somebody else set, and that does not count."""
    if seen.memory.foreign:
        who = ", ".join(seen.memory.foreign)
        text = f"{who} also writes replicas of the Deployment; remove it (HPA, ScaledObject, kubectl scale): only spec.scaling counts"
        return "ForeignWriter", text
    who = ", ".join(scaletarget.writers(seen.pool))
    if not who or seen.spec.scaling.mode is ScalingMode.EXTERNAL:
        return None
    text = (
        f"spec.replicas of the pool was set by {who}; it is not obeyed: set spec.scaling.min and max instead, "
        "or scaling.mode: External, which leaves the size to another scaler"
    )
    return "ReplicasNotObeyed", text


def _external(decision: Decision) -> str:
    """Whether another scaler's wish is followed, or nobody has told one yet, or not all of it is given."""
    if decision.given.policy.asked is None:
        return "ExternalAwaited"
    return "External" if decision.limited == decision.given.policy.asked else "ExternalBounded"


def _drained(seen: Seen) -> list[Condition]:
    """Nothing, where it cannot be told: what was told stands, for an earlier generation if need be."""
    read = seen.sized.view if seen.sized else None
    deployment = seen.deployment
    status = deployment.get("status") or {}
    settled = (status.get("observedGeneration") or 0) >= deployment["metadata"].get("generation", 0)
    wanted = int(deployment["spec"].get("replicas") or 0)
    left = Left(
        mode=Mode(seen.spec.scaling.mode.value),
        pods=max(wanted, 0 if settled and not wanted else int(status.get("replicas") or 0), seen.all_pods),
        settled=settled,
        tasks=read.running if read else None,
        closed=read is not None and read.closed,
    )
    found = drained(left)
    return [] if found is None else [found]


def _in_vain(seen: Seen) -> tuple[str, str] | None:
    """Reason and words for tasks that are ready and ask for no pods."""
    if seen.unable:
        return "NoCapableWorker", _nobody(seen.unable)
    held = seen.sized.view.backlog.held if seen.sized and seen.sized.view else ()
    return ("QueueHeld", f"{'; '.join(held)}: what waits there asks for no pods") if held else None


def _nobody(types: Sequence[str]) -> str:
    more = f" and {len(types) - NAMED} more" if len(types) > NAMED else ""
    return (
        f"tasks of type {', '.join(types[:NAMED])}{more} wait in its queues, and no worker of any pool can run them: they ask for no "
        "pods; roll out a build that has the type (and taskTypes that name it), or cancel them"
    )


def _quota(seen: Seen) -> Condition:
    if not seen.spec.providers:
        return Condition("QuotaLimited", "False", "NoProviders", "it uses no provider with a quota")
    if seen.allotment is None:
        return Condition(
            "QuotaLimited", "True", "QuotaPending", "its share of the quota is not in force yet: no task starts"
        )
    share = seen.allotment.share
    limited = seen.sized is not None and seen.sized.decision.limited_by is LimitedBy.PROVIDER_QUOTA
    closed = seen.allotment.slots == 0
    if seen.throttled and not closed:
        return Condition("QuotaLimited", "True", "Throttled", f"{seen.throttled}; {share.sentence}")
    return Condition("QuotaLimited", verdicts.truth(limited or closed), str(share.reason), share.sentence)


def _drain_budget(seen: Seen) -> Condition:
    if seen.allowed is not None and exceeded(seen.drains, seen.allowed):
        needed = f"drains need {seen.drains.needed.total_seconds():.0f} s, and {seen.allowed.sentence}"
        remedy = "what is not done by then is handed back if it is told in time, or its leases expire; make tasks checkpoint more often"
        return Condition("DrainBudgetOK", "False", "NodesAllowLess", f"{needed}: {remedy}, or place the pool elsewhere")
    if seen.drains.fits:
        return Condition("DrainBudgetOK", "True", str(seen.drains.reason), seen.drains.sentence)
    text = f"{seen.drains.sentence}; raise spec.drain.maxGrace, or make tasks checkpoint more often"
    return Condition("DrainBudgetOK", "False", str(seen.drains.reason), text)
