"""One operator of an installation acts, the others stand by: a Lease of ours, kept by decide/leadership.py.

Guarantees: `permit` lets a write begin only while no other process can hold the Lease; the Lease is changed by compare-and-set
alone; it is given up when the writers have stopped, and never after it was lost. Not guaranteed: that a request which has left this
process arrives in time; for that writes carry a resourceVersion or repeat harmlessly, and the store knows the term.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from poolkeeper_operator.decide import leadership as protocol
from poolkeeper_operator.decide.leadership import Candidate, Record, Wish
from poolkeeper_operator.runtime.failures import KubeError, NotLeading
from poolkeeper_operator.runtime.health import Loops
from poolkeeper_operator.runtime.kinds import LEASE
from poolkeeper_operator.runtime.kube import Kube

log = logging.getLogger(__name__)
DEFAULT_LEASE = "poolkeeper-operator"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
LOOP = "leadership"
LATE = 60.0
REQUEST = 5.5  # seconds: enough for a slow API server, and one more fits into the time of trust
RELEASE = 2.0
BRIEF = 1_000_000  # more holders than a Lease will see before it is made anew
Manifest = dict[str, Any]

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds that also pass while the machine is suspended, where it can tell."""
    return time.clock_gettime(_CLOCK)


@dataclass(frozen=True)
class Post:
    """Which Lease makes an operator the leader, and who asks for it."""

    namespace: str
    name: str
    holder: str  # of the process: never used twice

    @property
    def lease(self) -> str:
        """For messages and the store."""
        return f"{self.namespace}/{self.name}"


def post(namespaces: Sequence[str], lease: str | None = None, place: str | None = None) -> Post:
    """The Lease of an installation that keeps these namespaces (none: all), unless it is named.

    It is in the pod's own namespace; outside of a pod in the first namespace kept, else in "default". Installations that keep
    different namespaces have different Leases.
    """
    kept = sorted(set(namespaces))
    own = place or os.environ.get("POOLKEEPER_POD_NAMESPACE") or _of_account() or (kept[0] if kept else "default")
    if not lease:
        mark = hashlib.sha256(",".join(kept).encode()).hexdigest()[:8]
        lease = DEFAULT_LEASE if kept in ([], [own]) else f"{DEFAULT_LEASE}-{mark}"
    name = os.environ.get("POOLKEEPER_POD_NAME") or socket.gethostname()
    return Post(own, lease, f"{name}_{secrets.token_hex(4)}")


def _of_account() -> str | None:
    """The namespace of the pod that this is, if it is one."""
    try:
        return ACCOUNT.read_text().strip() or None
    except OSError:
        return None


class Leadership:
    """See the module. `leading` is set when this process leads; when `campaign` is over it does not any more, and must end."""

    def __init__(self, kube: Kube, post: Post, loops: Loops) -> None:
        self.post = post
        self.leading = asyncio.Event()
        self.why = ""
        self.epoch = 0
        self._kube = kube
        self._loops = loops
        self._me = Candidate(post.holder)
        self._live: Manifest | None = None
        self._given_up = False
        self._said = ""

    @property
    def leads(self) -> bool:
        """Whether this process may write now."""
        return not self._given_up and protocol.trusts(self._me, clock())

    def permit(self) -> float:
        """The seconds that a write which begins now may take; raises NotLeading."""
        now = clock()
        if self._given_up or not protocol.trusts(self._me, now):
            raise NotLeading(
                f"this operator does not hold the Lease {self.post.lease}: {self.why or 'another one may act'}"
            )
        return self._me.trusted_until + protocol.MARGIN - now

    async def campaign(self) -> None:
        """Stand by, lead, and end when the Lease is lost; a failed request is repeated."""
        while True:
            self._loops.ticked(LOOP, LATE)
            step = protocol.next_step(self._me, clock())
            if step.at > clock():
                await asyncio.sleep(step.at - clock())
                continue
            if step.wish is Wish.END:
                break
            try:
                await (self._look() if step.wish is Wish.LOOK else self._write(step.transitions))
            except KubeError as error:
                self._me = protocol.failed(self._me, clock())
                self._say(f"lease.failed: {self.post.lease}: {error}")
        self.why = step.why
        self._loops.ended(LOOP)
        log.error("leadership.lost: %s: %s; this process ends", self.post.lease, self.why)

    async def release(self) -> None:
        """Give the Lease up, so that another takes it at once; nothing may be written from now on."""
        mine, self._given_up = self.leads, True
        if not mine or self._live is None:
            return
        record = Record("", self._me.transitions, _stamp())
        with contextlib.suppress(KubeError):
            try:
                await self._kube.replace_lease(_manifest(self.post, record, self._live), within=RELEASE)
            except KubeError as error:
                if not error.conflict:
                    raise
                await self._look()  # a renewal that was cut short may have arrived
                if self._me.seen is None or self._me.seen.holder != self.post.holder:
                    return
                await self._kube.replace_lease(_manifest(self.post, record, self._live), within=RELEASE)
            log.info("leadership.released: %s", self.post.lease)

    async def _look(self) -> None:
        self._live = await self._kube.get(LEASE, self.post.namespace, self.post.name, within=REQUEST)
        before = self._me.seen
        self._me = protocol.looked(self._me, _record(self._live), clock())
        seen = self._me.seen
        if seen is not None and seen.holder and (before is None or before.holder != seen.holder):
            log.info("leadership.standby: %s is held by %s", self.post.lease, seen.holder)
        self._said = ""

    async def _write(self, transitions: int) -> None:
        """Take or renew the Lease as it was seen last; who lost the race looks again."""
        begun = clock()
        record = Record(self.post.holder, transitions, _stamp())
        manifest = _manifest(self.post, record, self._live)
        try:
            if self._live is None:
                self._live = await self._kube.create_lease(manifest, within=REQUEST)
            else:
                self._live = await self._kube.replace_lease(manifest, within=REQUEST)
        except KubeError as error:
            gone = error.not_found and self._live is not None  # else it is the namespace that is not there
            if not (error.conflict or gone):
                raise
            await self._look()
            return
        first = not self._me.led
        self._me = protocol.wrote(self._me, record, begun, clock())
        self._said = ""
        if first:
            self.epoch = _epoch(self._live)
            log.info("leadership.taken: %s, epoch %d", self.post.lease, self.epoch)
            self.leading.set()

    def _say(self, line: str) -> None:
        if line != self._said:
            log.warning("%s", line)
        self._said = line


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _record(lease: Manifest | None) -> Record | None:
    if lease is None:
        return None
    spec: Mapping[str, Any] = lease.get("spec") or {}
    return Record(
        holder=spec.get("holderIdentity") or "",
        transitions=int(spec.get("leaseTransitions") or 0),
        stamp=str(spec.get("renewTime")),
        hold=float(spec.get("leaseDurationSeconds") or 0),
    )


def _manifest(post: Post, record: Record, live: Manifest | None) -> Manifest:
    """The whole Lease as it shall be; with the version that was seen, so that nobody else's change is undone."""
    before: Mapping[str, Any] = (live or {}).get("spec") or {}
    taken = before.get("acquireTime") if before.get("holderIdentity") == record.holder else record.stamp
    meta = dict((live or {}).get("metadata") or {"namespace": post.namespace, "name": post.name})
    meta.pop("managedFields", None)
    return {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.kind,
        "metadata": meta,
        "spec": {
            "holderIdentity": record.holder,
            "leaseDurationSeconds": int(record.hold),
            "leaseTransitions": record.transitions,
            "acquireTime": taken,
            "renewTime": record.stamp,
        },
    }


def _epoch(lease: Manifest) -> int:
    """Rises with every holder, also when the Lease was deleted in between: when it was made, then its transitions."""
    made = datetime.fromisoformat(lease["metadata"]["creationTimestamp"])
    return int(made.timestamp()) * BRIEF + int(lease["spec"]["leaseTransitions"])
