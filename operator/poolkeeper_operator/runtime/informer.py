"""kopf as an informer: it tells what changed, and nothing else.

Guarantees: no handler keeps state on objects, patches, sets a finalizer or can fail; every event becomes a key of the work
queue. Events that only repeat our own writes of status become nothing.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import kopf

from poolkeeper_operator.observe import nodes
from poolkeeper_operator.observe.world import pool_of, version
from poolkeeper_operator.runtime.context import Context
from poolkeeper_operator.runtime.kinds import (
    DATABASE,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    NODE,
    OURS,
    POD,
    POOL,
    QUEUE,
    QUOTA,
    SELECTORS,
    SERVICE_ACCOUNT,
    Resource,
)
from poolkeeper_operator.runtime.workqueue import Key

ROUND = 300  # seconds after which the API server ends a watch, so that it is opened anew
QUIET = 70.0  # seconds without an event or bookmark, which come every minute, until a watch is opened anew
SOON = 0.1  # seconds in which the events of one pool's children become one reconcile


class NoState(kopf.DiffBaseStorage):  # type: ignore[misc]  # kopf is not typed for mypy here
    """kopf compares nothing and remembers nothing on objects; building its copy of each object is most of its cost."""

    def build(self, *, body: Any, extra_fields: Any = None) -> Any:  # noqa: ARG002 - the base class's signature
        """Nothing to compare."""
        return {}

    def fetch(self, *, body: Any) -> None:
        """Nothing was stored."""

    def store(self, *, body: Any, patch: Any, essence: Any) -> None:
        """Nothing is stored."""


Login = Callable[[], Awaitable[kopf.AiohttpSession]]
Step = Callable[[], Awaitable[None]]


def settings() -> kopf.OperatorSettings:
    """Kopf's settings, see docs/adr/0002-kopf-as-informer-only.md: no scanning, no peering, no state, requests with time limits."""
    made = kopf.OperatorSettings()
    made.scanning.disabled = True
    made.peering.standalone = True
    made.posting.enabled = False
    made.persistence.diffbase_storage = NoState()
    made.networking.request_timeout = 30
    made.networking.connect_timeout = 5
    made.watching.server_timeout = ROUND
    made.watching.inactivity_timeout = QUIET
    for resource, selector in SELECTORS.items():
        made.watching.label_selectors[resource.group, resource.version, resource.plural] = selector
    return made


def registry(context: Context, login: Login, startup: Step, cleanup: Step) -> kopf.OperatorRegistry:
    """The handlers, in a registry of their own."""
    made = kopf.OperatorRegistry()

    async def log_in(**_: Any) -> kopf.AiohttpSession:
        return await login()

    async def begin(**_: Any) -> None:
        await startup()

    async def end(**_: Any) -> None:
        await cleanup()

    kopf.on.login(registry=made)(log_in)
    kopf.on.startup(registry=made)(begin)
    kopf.on.cleanup(registry=made)(end)
    for resource in context.watched:
        _watch(made, context, resource)
    return made


def _watch(made: kopf.OperatorRegistry, context: Context, resource: Resource) -> None:
    async def seen(event: Mapping[str, Any], **_: Any) -> None:
        notice(context, resource, event.get("type"), event["object"])

    kopf.on.event(resource.group, resource.version, resource.plural, registry=made, id=resource.plural)(seen)


def notice(context: Context, resource: Resource, what: str | None, manifest: Mapping[str, Any]) -> None:
    """Take one event over into the world and wake whoever it concerns."""
    meta = manifest["metadata"]
    namespace, name = meta.get("namespace", ""), meta["name"]
    before = context.world.get(resource.kind, namespace, name)
    if resource == POD:
        context.crashes.see(namespace, pool_of(manifest), manifest)
    if what == "DELETED":
        if before is not None and version(before) > version(manifest):  # made anew under the same name
            return
        context.world.drop(resource.kind, namespace, name, version(manifest))
        context.forget(manifest)
    elif not context.world.put(resource.kind, {**_typed(resource), **manifest}):
        return
    wake(context, resource, before, None if what == "DELETED" else manifest)


def wake(context: Context, resource: Resource, before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> None:
    """Queue what a change concerns: the object itself, and what refers to it."""
    manifest = now or before
    if manifest is None:
        return
    namespace, name = manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]
    if resource == NODE:
        _wake_node(context, name, before, now)
    elif resource == DEPLOYMENT:
        context.enqueue(POOL, namespace, name, after=SOON)
    elif resource in {SERVICE_ACCOUNT, DISRUPTION_BUDGET, NETWORK_POLICY}:
        if before is None or now is None or _told(before) != _told(now):
            context.enqueue(POOL, namespace, name, after=SOON)
    elif resource == POD:
        context.enqueue(POOL, namespace, pool_of(manifest), after=SOON)
    elif resource in OURS and (before is None or now is None or _told(before) != _told(now)):
        fresh = before is None or now is None or before["metadata"]["generation"] != now["metadata"]["generation"]
        context.queue.add(Key(resource.kind, namespace, name), fresh=fresh)
        if resource in {DATABASE, QUEUE}:
            _wake_dependents(context, resource, namespace)
        elif resource == QUOTA:
            _wake_users(context, namespace, name)


def _wake_node(context: Context, node: str, before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> None:
    """Its pools, if it is about to go, or no more: most of what a node says of itself concerns nobody."""
    if before is None or now is None or before.get("spec") != nodes.trimmed(now):
        for pool in context.world.pools_on(node):
            context.enqueue(POOL, *pool, after=SOON)


def _wake_dependents(context: Context, resource: Resource, namespace: str) -> None:
    kinds = (QUEUE, POOL) if resource == DATABASE else (POOL,)
    for kind in kinds:
        for manifest in context.world.all(kind.kind):
            if manifest["metadata"]["namespace"] == namespace:
                context.enqueue(kind, namespace, manifest["metadata"]["name"], after=SOON)


def _wake_users(context: Context, namespace: str, quota: str) -> None:
    for manifest in context.world.all(POOL.kind):
        own = manifest["metadata"]["namespace"]
        refs = [each.get("quotaRef") or {} for each in (manifest.get("spec") or {}).get("providers") or []]
        if any(ref.get("name") == quota and (ref.get("namespace") or own) == namespace for ref in refs):
            context.enqueue(POOL, own, manifest["metadata"]["name"], after=SOON)


def _told(manifest: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a person may have changed: everything but the status."""
    meta = manifest["metadata"]
    return (
        meta.get("uid"),
        meta.get("generation"),
        meta.get("annotations"),
        meta.get("labels"),
        meta.get("deletionTimestamp"),
    )


def _typed(resource: Resource) -> dict[str, Any]:
    """Items of a list carry neither."""
    return {"apiVersion": resource.api_version, "kind": resource.kind}
