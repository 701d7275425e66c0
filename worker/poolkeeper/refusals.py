"""What a refusal is about and what to do, in one sentence: the errors that clients raise for codes of the store (contract 2)."""

from collections.abc import Mapping
from typing import Any

from poolkeeper.codes import Code
from poolkeeper.errors import error
from poolkeeper.redact import bounded, shown
from poolkeeper.store.rows import Verdict

REMEDIES = {
    Code.UNKNOWN_QUEUE: "apply it first, as a TaskQueue, which must be Ready, or by poolkeeper queue apply; "
    "poolkeeper queue list has those that are there",
    Code.QUEUE_PAUSED: "resume it, or submit again later",
    Code.QUEUE_LIMIT: "submit again later, or raise admission.maxWaiting",
    Code.TENANT_QUEUE_LIMIT: "submit again later, or raise what the queue's policy lets the tenant have waiting",
    Code.TENANT_SUSPENDED: "take the tenant out of the queue's suspendedTenants, or submit again later",
    Code.PAYLOAD_TOO_LARGE: "submit a reference to data kept elsewhere, or raise admission.maxPayloadSize",
    Code.PAYLOAD_INVALID: "nest less deeply and send large numbers as text",
    Code.TYPE_INVALID: "a type is words of a-z, 0-9 and _ joined by dots, at most 100 characters",
    Code.TENANT_INVALID: "a tenant is 1 to 200 printable characters",
    Code.KEY_INVALID: "a key is 1 to 200 printable characters",
    Code.LABELS_INVALID: "labels are texts by name, at most 4096 bytes as JSON",
    Code.OPTION_INVALID: "max_deliveries is at least 1, run_at within 100 years, a duration a timedelta or seconds as a finite number",
    Code.UNKNOWN_TYPE: "add the type to the queue's taskTypes",
    Code.MAX_AGE_PASSED: "give it a longer max_age",
    Code.KEY_CONFLICT: "another payload needs another key",
    Code.KEY_IN_FLIGHT: "submit it again with the same key",
    Code.ROLE_NOT_ALLOWED: "ask for the tenant in this login's row of poolkeeper.access",
}
"""What to do about a refused submit."""


_NAMED = {
    Code.TYPE_INVALID: ("type",),
    Code.UNKNOWN_TYPE: ("type",),
    Code.TENANT_INVALID: ("tenant",),
    Code.ROLE_NOT_ALLOWED: ("tenant",),
    Code.TENANT_QUEUE_LIMIT: ("tenant",),
    Code.KEY_INVALID: ("key", "ordering_key"),
    Code.KEY_CONFLICT: ("key",),
    Code.KEY_IN_FLIGHT: ("key",),
    Code.LABELS_INVALID: ("labels",),
    Code.OPTION_INVALID: ("priority", "run_at", "delay", "max_age", "max_deliveries", "traceparent"),
}
"""The wishes that a refusal may be about: those of them that were given are named."""


def path(queue: str) -> str:
    """Return a queue's name as the store says it, short enough for a sentence."""
    return bounded(queue if "/" in queue else f"default/{queue}", 200)


def about(code: Code, wishes: Mapping[str, Any]) -> str:
    """Return the wishes that a refusal may be about, as far as they were given."""
    named = [name for name in _NAMED.get(code, ()) if wishes.get(name) is not None]
    return ", ".join(f"{name} {shown(wishes[name])}" for name in named)


def accepted(queue: str, wishes: Mapping[str, Any], verdict: Verdict) -> Verdict:
    """Return the verdict of a submit that was accepted; raises the error of a refused one."""
    if verdict.code is None:
        return verdict
    bound = "" if verdict.limit is None else f", limit {verdict.limit}, present {verdict.current}"
    remedy = f"; {REMEDIES[verdict.code]}" if verdict.code in REMEDIES else ""
    raise error(
        verdict.code,
        f'queue "{path(queue)}" refused {about(verdict.code, wishes) or "the task"}: {verdict.code}{bound}{remedy}',
        retry_after=verdict.retry_after,
    )
