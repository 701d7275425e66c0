"""What the operator remembers of a pool between two reconciles; lost at a restart, and nothing unsafe follows from that."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from poolkeeper_operator.decide.decision import Decision
from poolkeeper_operator.decide.hints import Spell
from poolkeeper_operator.decide.history import History
from poolkeeper_operator.decide.service import ServiceMeter
from poolkeeper_operator.decide.signals import Mode
from poolkeeper_operator.decide.victims import Lowering
from poolkeeper_operator.observe.signals import PoolView, counts, start_ups
from poolkeeper_operator.runtime.failures import KubeError

START_UPS = 20
LONGEST_START_UP = timedelta(minutes=5)


@dataclass(frozen=True)
class Hold:
    """What was refused, how often in a row, and until when it is left alone."""

    error: KubeError
    generation: int
    failures: int
    until: datetime


@dataclass(frozen=True)
class Looked:
    """A look at a pool's database login: for what, until when it holds, and whether all that was to be done was."""

    of: object
    until: datetime
    done: bool


@dataclass
class Memory:
    """Of one pool, by its uid."""

    uid: str
    history: History = field(default_factory=History)
    meter: ServiceMeter = field(default_factory=ServiceMeter)
    metered: datetime | None = None  # the reading that the meter has seen
    decision: Decision | None = None
    lines: list[dict[str, Any]] = field(default_factory=list)  # the last changes of size, newest first
    foreign: tuple[str, ...] = ()  # who else wrote the Deployment's replicas, and until when it is told
    foreign_until: datetime | None = None
    shaped: tuple[object, ...] | None = None  # generations of pool and database, versions of the children: in shape
    hold: Hold | None = None  # the API server refused a child of this shape: not tried again until then
    external: bool = False  # the size was handed over to another scaler (mode External)
    generation: int = 0  # of the spec that was last looked at
    conflicts: int = 0  # in a row, of writes of the size
    accepted: tuple[str, int] | None = None  # manifest and generation that the API server normalised
    login: Looked | None = None  # the last look at the pool's database login
    crashes_due: float | None = None  # seconds until crash evidence is to be told again
    graces: dict[str, float] = field(
        default_factory=dict
    )  # by uid of pods that are ended early: the seconds that were told
    spells: dict[str, Spell] = field(default_factory=dict)  # by a pod's uid: how long it has been busy or idle
    lowering: Lowering | None = None  # the last one, until the controller has followed
    _starts: "OrderedDict[str, timedelta]" = field(default_factory=OrderedDict)

    @classmethod
    def of(cls, pool: Mapping[str, Any]) -> "Memory":
        """A new one, with the changes that the status still tells of."""
        status = pool.get("status") or {}
        external = status.get("mode") == Mode.EXTERNAL
        return cls(uid=pool["metadata"]["uid"], lines=list(status.get("decisions") or []), external=external)

    def learn(self, view: PoolView) -> None:
        """Take over what a reading tells of service and start-up times; each reading counts once."""
        if self.metered is not None and view.read_at <= self.metered:
            return
        self.metered = view.read_at
        self.meter = self.meter.observe(counts(view.stats), view.read_at)
        for uid, took in start_ups(view).items():
            self._starts.setdefault(uid, min(took, LONGEST_START_UP))
        while len(self._starts) > START_UPS:
            self._starts.popitem(last=False)

    @property
    def start_up(self) -> timedelta | None:
        """The median time from a pod's creation to its session; None before the first."""
        if not self._starts:
            return None
        return timedelta(seconds=median(took.total_seconds() for took in self._starts.values()))
