"""Who can run what, from the pools that were seen and the last reading of their database (Q11)."""

from collections.abc import Iterator, Mapping
from typing import Any

from poolkeeper.store.rows import TypeStats
from poolkeeper_operator.act.podtemplate import BUILD_LABEL
from poolkeeper_operator.decide.tenants import Tenants
from poolkeeper_operator.observe import capability
from poolkeeper_operator.observe.link import Link
from poolkeeper_operator.resources import ResourceError, WorkerPoolSpec
from poolkeeper_operator.runtime.context import Context, Serving
from poolkeeper_operator.runtime.kinds import DEPLOYMENT, POOL


def can_run(context: Context, pool: Mapping[str, Any], spec: WorkerPoolSpec, link: Link) -> capability.Types:
    """The types that the present build of a pool can run; None: unknown, so all."""
    if spec.task_types or link.reading is None:
        return capability.can_run(spec.task_types, None, None)
    namespace, name = pool["metadata"]["namespace"], pool["metadata"]["name"]
    deployment = context.world.get(DEPLOYMENT.kind, namespace, name)
    build = ((deployment or {}).get("metadata", {}).get("labels") or {}).get(BUILD_LABEL)
    return capability.can_run((), build, link.reading.pools.get(f"{namespace}/{name}"))


def unable(context: Context, link: Link, namespace: str, queue: str) -> list[TypeStats]:
    """The types with ready tasks in a queue that no worker of any of its pools can run, nor any session elsewhere."""
    stats = link.reading.queues.get((namespace, queue)) if link.reading else None
    return [] if stats is None else capability.unable(stats, _pools(context, link, namespace, queue))


def _pools(context: Context, link: Link, namespace: str, queue: str) -> Iterator[tuple[capability.Types, Tenants]]:
    reading, found = context.serving.get(link.key, (None, {}))
    if reading is not link.reading:  # once per reading: many queues ask
        found = _serving(context, namespace)
        context.serving[link.key] = link.reading, found
    for manifest, spec in found.get(queue, ()):
        yield can_run(context, manifest, spec, link), spec.takes()


def _serving(context: Context, namespace: str) -> Serving:
    """The pools of a namespace that can be understood, by the names of their queues."""
    found: Serving = {}
    for manifest in context.world.all(POOL.kind):
        if manifest["metadata"]["namespace"] != namespace or "deletionTimestamp" in manifest["metadata"]:
            continue
        try:
            spec = context.spec(WorkerPoolSpec, manifest)
        except ResourceError:
            continue
        for ref in spec.queues:
            found.setdefault(ref.name, []).append((manifest, spec))
    return found
