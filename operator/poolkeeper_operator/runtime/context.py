"""What every reconciler is given: the way to the API server, what was seen, the databases, and a clock."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

from pydantic import BaseModel

from poolkeeper.store import Call, calls
from poolkeeper_operator.act.events import Kind, event, moment_suffix
from poolkeeper_operator.act.status import StatusWriter
from poolkeeper_operator.decide.allowance import Allowance
from poolkeeper_operator.observe.link import Link, Reading
from poolkeeper_operator.observe.world import World
from poolkeeper_operator.resources import WorkerPoolSpec, read_spec
from poolkeeper_operator.resources.templatepolicy import TemplatePolicy
from poolkeeper_operator.runtime.crashes import Crashes
from poolkeeper_operator.runtime.failures import KubeError
from poolkeeper_operator.runtime.health import Loops
from poolkeeper_operator.runtime.kinds import NAMESPACE, NODE, OPTIONAL, QUEUE, WATCHED, Resource
from poolkeeper_operator.runtime.kube import Kube
from poolkeeper_operator.runtime.leadership import Leadership
from poolkeeper_operator.runtime.workqueue import Key, WorkQueue

log = logging.getLogger(__name__)
S = TypeVar("S", bound=BaseModel)
Manifest = dict[str, Any]
Serving = dict[str, list[tuple[Mapping[str, Any], WorkerPoolSpec]]]  # pools by the names of their queues
NAMESPACE_KEPT = 60.0  # seconds that a namespace's labels are remembered


@dataclass
class Context:
    """Shared by all reconcilers; `queue` is set once it exists."""

    kube: Kube
    cluster: str  # UID of the kube-system namespace
    leadership: Leadership
    namespaces: tuple[str, ...]  # that are kept; () is all
    templates: TemplatePolicy = field(default_factory=TemplatePolicy)
    node_graces: tuple[Allowance, ...] = ()  # what whoever runs the nodes says that they allow
    lacks: tuple[str, ...] = ()  # rights to nodes that are missing: nodes are not looked at
    world: World = field(default_factory=World)
    links: dict[tuple[str, str], Link] = field(default_factory=dict)
    loops: Loops = field(default_factory=Loops)
    judged: set[tuple[str, str]] = field(default_factory=set)  # databases that were reconciled at least once
    serving: dict[tuple[str, str], tuple[Reading | None, Serving]] = field(
        default_factory=dict
    )  # by database, as of a reading
    crashes: Crashes = field(default_factory=Crashes)
    status: StatusWriter = field(init=False)
    queue: WorkQueue = field(init=False)
    _specs: dict[str, tuple[int, Any]] = field(default_factory=dict)  # by uid: the generation that was read
    _spaces: dict[str, tuple[datetime, Manifest]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.status = StatusWriter(self.kube)

    @property
    def watched(self) -> tuple[Resource, ...]:
        """The kinds that are watched: nodes only where that is allowed."""
        return WATCHED if self.lacks else (*WATCHED, *OPTIONAL)

    def node(self, name: str) -> Manifest | None:
        """A node as last seen."""
        return self.world.get(NODE.kind, "", name)

    @staticmethod
    def now() -> datetime:
        """The operator's clock."""
        return datetime.now(UTC)

    def enqueue(self, resource: Resource, namespace: str, name: str, *, after: float = 0.0) -> None:
        """Have an object reconciled."""
        self.queue.add(Key(resource.kind, namespace, name), after=after)

    def enqueue_queue(self, queue: tuple[str, str]) -> None:
        """Have a TaskQueue reconciled."""
        self.enqueue(QUEUE, *queue)

    def spec(self, model: type[S], manifest: Mapping[str, Any]) -> S:
        """The spec of an object, read once per generation; raises ResourceError."""
        uid, generation = manifest["metadata"]["uid"], manifest["metadata"]["generation"]
        known = self._specs.get(uid)
        if known is None or known[0] != generation:
            known = self._specs[uid] = (generation, read_spec(model, manifest))
        found: S = known[1]
        return found

    def forget(self, manifest: Mapping[str, Any]) -> None:
        """An object is gone."""
        uid = manifest["metadata"]["uid"]
        self._specs.pop(uid, None)
        self.status.forget(uid)

    def lead(self, namespace: str) -> Call[UUID]:
        """The call by which this operator registers for a namespace in a database; raises NotLeading."""
        leadership = self.leadership
        leadership.permit()
        post = leadership.post
        return calls.lead(self.cluster, namespace, lease=post.lease, epoch=leadership.epoch, holder=post.holder)

    def undecided(self, namespace: str, database: str) -> bool:
        """Whether nothing can be said of a database yet, as the operator only just started or heard of it."""
        link = self.links.get((namespace, database))
        if link is None:
            return (namespace, database) not in self.judged
        return link.reading is None and not link.failures

    async def namespace(self, name: str, *, fresh: bool = False) -> Manifest | None:
        """A namespace, at most a minute old unless the API server is away; None if it is gone.

        `fresh`: read now, as it may have been made anew.
        """
        known = self._spaces.get(name)
        if known and not fresh and (self.now() - known[0]).total_seconds() < NAMESPACE_KEPT:
            return known[1]
        try:
            found = await self.kube.get(NAMESPACE, None, name)
        except KubeError:
            if known is None:
                raise
            return known[1]  # that nobody answers changes no namespace
        if found is None:
            self._spaces.pop(name, None)
            return None
        self._spaces[name] = (self.now(), found)
        return found

    async def tell(
        self, about: Mapping[str, Any], kind: Kind, reason: str, message: str, *, suffix: str | None = None
    ) -> bool:
        """Post an Event; that it cannot be posted is logged and never stops a reconcile. False: it may work another time."""
        now = self.now()
        made = event(about, suffix=suffix or moment_suffix(now), kind=kind, reason=reason, message=message, now=now)
        try:
            await self.kube.create_event(made)
        except KubeError as error:
            log.warning("event.%s: %s: %s", "lost" if error.senseless else "postponed", reason, error)
            return error.senseless
        return True

    async def write_status(
        self, resource: Resource, manifest: Mapping[str, Any], status: Mapping[str, Any]
    ) -> float | None:
        """Write a status if it changed and is due; the seconds after which to come again if it is not due yet."""
        try:
            answer, wait = await self.status.write(resource, manifest, status)
        except KubeError as error:
            if not error.not_found:
                raise
            meta = manifest["metadata"]
            known = self.world.get(resource.kind, meta["namespace"], meta["name"])
            if known is not None and known["metadata"]["uid"] == meta["uid"]:  # deleted, and no event told of it yet
                self.world.drop(resource.kind, meta["namespace"], meta["name"])
                self.forget(manifest)
                self.enqueue(resource, meta["namespace"], meta["name"])
            return None
        if answer is not None:
            self.world.put(resource.kind, answer)
        return wait
