"""Which arrows and refusals there are (queue.md 1 to 6 and 8): the lists that random lives must have taken, each often.

``Course`` counts what was taken and chooses by it what the next lives tell.
"""

from collections import Counter

from poolkeeper.codes import ALREADY_DONE, Code, Reason
from store.model_stories import STORIES
from store.model_task import LIMITS

Taken = tuple[str, ...]
"""An arrow (from, to, by what), or a refusal (of what, its code)."""

LEAVES = {
    "nothing": {"ready", "scheduled"},
    "scheduled": {"ready", "canceled", "dead"},
    "ready": {"leased", "running", "canceled", "dead"},
    "leased": {"running", "ready", "canceled", "dead"},
    "running": {"succeeded", "failed", "canceled", "dead", "scheduled", "waiting", "ready"},
    "waiting": {"ready", "canceled", "dead"},
    "succeeded": set(),
    "failed": set(),
    "canceled": set(),
    "dead": {"ready", "canceled"},
}
"""The table of section 1, where each state goes; ``unknown`` is not built."""

ARROWS: set[Taken] = {
    *(("nothing", state, "submit") for state in ("ready", "scheduled")),
    *((state, "ready", "woke") for state in ("scheduled", "waiting")),
    *((state, "canceled", "cancel") for state in ("scheduled", "ready", "waiting")),
    *((state, "dead", "max_age") for state in ("scheduled", "ready", "waiting", "leased", "running")),
    *(("ready", state, "claim") for state in ("leased", "running")),
    ("leased", "running", "start"),
    *(("leased", "ready", how) for how in ("returned", "handed_back", "refused")),
    *((state, "canceled", "canceled") for state in ("leased", "running")),
    *((state, "dead", "deliveries_exhausted") for state in ("leased", "running")),
    ("running", "succeeded", "succeeded"),
    ("running", "failed", "rejected"),
    *(("running", "dead", why) for why in ("permanent_error", "snoozes_exhausted", "failures_exhausted", *LIMITS)),
    *(("running", "scheduled", how) for how in ("failed", "max_run_time", "progress_timeout")),
    ("running", "waiting", "snoozed"),
    *(("running", "ready", how) for how in ("returned", "handed_back", "expired", "process_died")),
    ("dead", "ready", "requeue"),
    ("dead", "canceled", "discard"),
}

_LOST = {"stale_token", "lease_expired", "canceled", "unknown_task", *LIMITS}
REFUSALS: set[Taken] = {
    *(("submit", code) for code in ("queue_paused", "tenant_suspended", "queue_limit", "tenant_queue_limit", "payload_too_large")),
    *(("submit", code) for code in ("max_age_passed", "unknown_type", "unknown_queue", "key_conflict")),
    *(("settle", code) for code in _LOST | {ALREADY_DONE}),
    *(("succeed", code) for code in _LOST | {ALREADY_DONE}),
    *(("start", code) for code in ("queue_paused", "tenant_suspended", "max_age_passed", "lease_expired", "canceled", "stale_token", "unknown_task", ALREADY_DONE, *LIMITS)),
    *(("extend", code) for code in _LOST),
    *(("checkpoint", code) for code in _LOST | {"checkpoint_too_large"}),
    *(("renew", code) for code in ("canceled", "lease_expired", *LIMITS)),
    *(("cancel", code) for code in ("unknown_task", "already_ended", "stale_version")),
    *((verb, code) for verb in ("requeue", "discard") for code in ("unknown_task", "not_dead", "stale_version")),
}  # fmt: skip

LISTED = ARROWS | REFUSALS
_TRIED = 2  # times, to see where a story leads
_SHARES = 250  # beside one for each story

ELSEWHERE = {
    "payload_invalid", "type_invalid", "tenant_invalid", "key_invalid", "labels_invalid", "option_invalid", "name_invalid",  # test_names, test_submit
    "key_in_flight", "in_transaction",  # need two transactions at once: test_keys, test_own_transaction
    "unknown_schedule", "schedule_invalid",  # test_schedules
    "queue_owned", "held", "not_leading", "unknown_pool", "unknown_provider", "role_not_allowed",  # test_catalog, test_leader, test_roles, test_providers
    "database_unreachable", "database_read_only", "database_busy", "connections_exhausted", "schema_too_old", "schema_too_new",
    "cluster_unreachable", "dsn_missing", "dsn_invalid", "login_refused", "app_not_importable", "duplicate_type", "setting_invalid",
    "crd_missing", "right_missing",  # no rule of the queue
}  # fmt: skip
"""Codes that no single life of a queue meets."""


def forgotten() -> dict[str, set[str]]:
    """What these lists do not know: pairs of states, codes and reasons that the product has and no list names."""
    pairs = {(before, after) for before, after, _ in ARROWS}
    table = {(before, after) for before, all_of in LEAVES.items() for after in all_of}
    died = {why for _, after, why in ARROWS if after == "dead"}
    endings = {
        "handler_error",
        "process_died",
        "lease_expired",
        "outage",
        "beside_others",
        "answer_lost",
        "start_refused",
        "drain",
        "rejected",
        "snoozed",
    }
    people = {"retry_after", "canceled_by", "discarded", "requeued"}
    found = {
        "arrows": {"->".join(pair) for pair in pairs ^ table},
        "codes": {str(code) for code in Code} - {code for _, code in REFUSALS} - ELSEWHERE,
        "deaths": {str(reason) for reason in Reason} - died - endings - people,
    }
    return {what: names for what, names in found.items() if names}


class Course:
    """What lives have taken so far, and with it which stories the next ones tell: those that led to what is still rare.

    ``stories`` stays as it is for a round of lives, so that each of them can be lived again.
    """

    def __init__(self, least: int) -> None:
        self.least = least
        self.taken: Counter[Taken] = Counter()
        self.stories: tuple[str, ...] = STORIES
        self._told: Counter[str] = Counter()
        self._led = {name: Counter[Taken]() for name in STORIES}

    def note(self, story: str, took: Counter[Taken]) -> None:
        """Where a story has led."""
        self._told[story] += 1
        self._led[story] += took

    def steer(self) -> None:
        """For the next round: what leads to the rarest is told most, and what was hardly tried is tried."""
        lacks = {what: (1 - self.taken[what] / self.least) ** 2 for what in LISTED if self.taken[what] < self.least}
        weights = {
            name: sum(lack * min(1, self._led[name][what] / self._told[name]) for what, lack in lacks.items())
            if self._told[name] >= _TRIED
            else 1.0
            for name in STORIES
        }
        whole = sum(weights.values()) or 1
        # the most wanted first: Hypothesis begins each round with a life of first choices
        order = sorted(STORIES, key=lambda name: -weights[name])
        self.stories = tuple(name for name in order for _ in range(1 + round(_SHARES * weights[name] / whole)))

    def rare(self) -> set[Taken]:
        """What was taken less often than it must be, or was taken and is in no list."""
        return {what for what in LISTED if self.taken[what] < self.least} | (set(self.taken) - LISTED)

    def table(self) -> str:
        """How often each was taken: arrows and refusals, the rarest first."""
        lines = []
        for those in (ARROWS, REFUSALS):
            more = {what for what in self.taken if what not in LISTED and len(what) == len(next(iter(those)))}
            for what in sorted(those | more, key=lambda what: (self.taken[what], what)):
                said = "{0} -> {1} ({2})" if len(what) == 3 else "{0}: {1}"
                lines.append(f"{self.taken[what]:7}  {said.format(*what)}")
        return "\n".join(["", *lines, ""])
