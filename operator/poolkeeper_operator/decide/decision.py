"""The answer of a scaling decision: a size, and the chain of reasons that led to it.

Guarantees: wanted → limited → rate-limited → applied, each with its reason; the same value feeds status, Event, metric, the store and
`poolkeeper pool explain`.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from poolkeeper_operator.decide.history import History
from poolkeeper_operator.decide.reasons import LimitedBy, RateLimitedBy, Want
from poolkeeper_operator.decide.record import Given


@dataclass(frozen=True, slots=True)
class Step:
    """One link of the chain: this reason took the size from one number to another (equal numbers: it held it)."""

    reason: str
    before: int
    after: int
    sentence: str


@dataclass(slots=True)
class Chain:
    """A size on its way to a decision, and the steps that it took; the one mutable value here, local to one decision."""

    pods: int
    steps: list[Step] = field(default_factory=list)

    def to(self, pods: int, reason: str, sentence: str) -> None:
        """Take the size from what it is to `pods`, because of `reason`."""
        self.steps.append(Step(str(reason), self.pods, pods, sentence))
        self.pods = pods


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a pool should be, in pods."""

    wanted: int  # what its work asks for, at least scaling.min
    reason: Want
    limited: int  # after maximum, maxRunning, quotas and pods that cannot start
    limited_by: LimitedBy
    goal: int  # after windows and steps: the size to steer to; victims in excess of it are marked
    applied: int  # what can be had without draining a busy pod: `goal`, or more while pods in excess still work
    rate_limited_by: RateLimitedBy
    replicas: int  # the size before
    steps: tuple[Step, ...]
    given: Given = field(repr=False)  # all that it was made from
    sentence: str  # the whole in one sentence
    blind: bool  # made without a reading
    needed: int  # what its work asks for, at least scaling.min, whoever decides on the size
    history: History = field(repr=False)  # to be passed to the next decision

    @property
    def changes(self) -> bool:
        """Whether the size should change."""
        return self.applied != self.replicas

    def as_record(self) -> dict[str, Any]:
        """For status, store and metric: JSON-able, with the inputs from which `scaling.recompute` makes it again."""
        return {
            "wanted": self.wanted,
            "reason": str(self.reason),
            "limited": self.limited,
            "limitedBy": str(self.limited_by),
            "goal": self.goal,
            "applied": self.applied,
            "rateLimitedBy": str(self.rate_limited_by),
            "replicas": self.replicas,
            "blind": self.blind,
            "steps": [asdict(step) for step in self.steps],
            "inputs": self.given.as_record(),
            "sentence": self.sentence,
        }
