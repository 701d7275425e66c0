"""Reconciling a Database: its Secrets, its schema, and the link over which queues and pools are read.

Guarantees: a wrong or missing Secret is a condition that names object and remedy; a rotated one is used within a
minute; migrations are applied only where the Database says so, on a connection of the owner's, on a thread. Where another operator
keeps the namespace in this database, that is told by one Event and the log, and nothing is written (O29).
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from poolkeeper.errors import PoolkeeperError
from poolkeeper.redact import redact
from poolkeeper.store import Fault, connect, migrate
from poolkeeper.store.rows import Stats
from poolkeeper_operator.act import verdicts
from poolkeeper_operator.act.compare import digest
from poolkeeper_operator.act.trouble import in_words, vacuum_held
from poolkeeper_operator.decide.conditions import Condition, merge
from poolkeeper_operator.observe.link import Link
from poolkeeper_operator.observe.secrets import FORBIDDEN, Dsn, SecretProblem, read_dsn
from poolkeeper_operator.resources import DatabaseSpec, DatabaseStatus, ResourceError
from poolkeeper_operator.resources.database import Roles
from poolkeeper_operator.runtime import metrics
from poolkeeper_operator.runtime.context import Context
from poolkeeper_operator.runtime.kinds import DATABASE, POOL, QUEUE
from poolkeeper_operator.runtime.logins import Logins
from poolkeeper_operator.runtime.removal import database_name, is_purging
from poolkeeper_operator.runtime.ticks import Ticks

log = logging.getLogger(__name__)
AGAIN = 60.0  # seconds; bounds how long a rotated Secret goes unnoticed
SOON = 10.0
CONNECTING = 2.0
TOGETHER = 30.0  # seconds in which the deletion of a Database's queue is awaited after its own, or after its Secret's
PATIENCE = 3  # failed readings in a row before Ready falls


# Reasons by the code of the failed reading: what needs a hand, and what comes right by itself. Others: Unreachable.
STALLS = {"dsn_invalid": "DsnInvalid", "login_refused": "LoginRefused", "role_not_allowed": "RoleNotAllowed"}
WAITS = {"database_read_only": "ReadOnly", "connections_exhausted": "ConnectionsExhausted"}


UNTOLD_POOLER = "; a connection pooler is in between: in transaction mode set spec.pooler: Transaction, and spec.directSecretRef past it"


class Databases:
    """Reconciles Databases and keeps their links."""

    def __init__(self, context: Context, ticks: Ticks) -> None:
        self._context = context
        self._ticks = ticks
        self._logins = Logins(context)
        self._logins_left: dict[tuple[str, str], int] = {}  # by database: logins of pools there, at the last look
        self._left: dict[tuple[str, str], float] = {}  # databases whose object or Secret is gone, and since when
        self._told: dict[tuple[str, str], str] = {}  # databases kept by another operator, and what was said of it
        self._migrated: dict[tuple[str, str], str] = {}  # database -> version of the Secret with which it was migrated

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """One pass; the seconds until the next."""
        manifest = self._context.world.get(DATABASE.kind, namespace, name)
        if manifest is None:
            return await self._leave(namespace, name)
        secret: str | None = None
        sooner = AGAIN
        try:
            spec = self._context.spec(DatabaseSpec, manifest)
            dsn = await self._secrets(namespace, name, spec)
            secret = dsn.version
            self._left.pop((namespace, name), None)
        except ResourceError as error:
            conditions = verdicts.stalled("InvalidSpec", str(error))
        except SecretProblem as error:
            # what was read before stays true while it may not be read again
            if error.reason != FORBIDDEN:
                sooner = await self._leave(namespace, name) or AGAIN
            conditions = verdicts.stalled(error.reason, error.message)
        except MigrationFailed as error:
            conditions = verdicts.waiting("MigrationFailed", str(error))
        else:
            conditions = self._judge(namespace, name, spec)
        self._context.judged.add((namespace, name))
        link = self._context.links.get((namespace, name))
        if link is not None and link.kept_elsewhere:
            return await self._contested(manifest, link)
        if self._context.undecided(namespace, name) and (link is not None or manifest.get("status")):
            return CONNECTING  # just started: what was said of it stands until it was tried
        await self._write(manifest, secret, conditions)
        await self._sweep_logins(namespace, name)
        return min(sooner, SOON) if conditions[0].status != "True" else AGAIN

    async def _sweep_logins(self, namespace: str, name: str) -> None:
        """Logins of pools that are gone; where there were none and none are made, none are looked for."""
        link = self._context.links.get((namespace, name))
        manifest = self._context.world.get(DATABASE.kind, namespace, name)
        if link is None or link.term is None or link.failures or manifest is None:
            return
        if manifest["spec"].get("roles") == Roles.PER_POOL or self._logins_left.get(link.key, 1):
            try:
                self._logins_left[link.key] = await self._logins.sweep(namespace, link)
            except (PoolkeeperError, OSError, Fault) as error:
                log.warning("database.logins: %s: %s", link.name, redact(str(error)))

    async def _contested(self, manifest: Mapping[str, Any], link: Link) -> float:
        """Its status belongs to the other operator: two writers of one condition would never end."""
        if self._told.get(link.key) != link.problem:
            self._told[link.key] = link.problem
            suffix = f"kept-elsewhere-{digest([link.problem])[:8]}"
            await self._context.tell(manifest, "Warning", "KeptElsewhere", link.problem, suffix=suffix)
        return AGAIN

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(link.close() for link in self._context.links.values()))

    async def _secrets(self, namespace: str, name: str, spec: DatabaseSpec) -> Dsn:
        kube = self._context.kube
        dsn = await read_dsn(kube, namespace, name, spec.dsn_secret_ref, "dsnSecretRef")
        direct: Dsn | None = None
        if spec.direct_secret_ref is not None:
            direct = await read_dsn(kube, namespace, name, spec.direct_secret_ref, "directSecretRef")
        if spec.migrates and spec.admin_secret_ref is not None:
            admin = await read_dsn(kube, namespace, name, spec.admin_secret_ref, "adminSecretRef")
            await self._migrate(namespace, name, admin)
        self._link(namespace, name).direct = direct.text if direct else None
        listens_at = direct.text if direct else None if spec.pooled else dsn.text
        await self._link(namespace, name).use(dsn.text, listens_at, spec.tick_interval)
        return dsn

    def _link(self, namespace: str, name: str) -> Link:
        links = self._context.links
        if (namespace, name) not in links:
            links[namespace, name] = Link(
                (namespace, name), self._context.cluster, self._context.lead, self._ticks.after_reading
            )
        return links[namespace, name]

    async def _migrate(self, namespace: str, name: str, admin: Dsn) -> None:
        """Once per process and version of the Secret, and again whenever the schema turns out to be too old."""
        link = self._context.links.get((namespace, name))
        too_old = link is not None and link.problem_code == "schema_too_old"
        if self._migrated.get((namespace, name)) == admin.version and not too_old:
            return
        self._context.kube.permit()
        try:
            await asyncio.to_thread(_apply, admin.text)
        except (PoolkeeperError, OSError) as error:
            raise MigrationFailed(f'database "{name}" in namespace "{namespace}": {redact(str(error))}') from error
        self._migrated[namespace, name] = admin.version
        if link is not None:
            link.wake()

    def _judge(self, namespace: str, name: str, spec: DatabaseSpec) -> list[Condition]:
        link = self._link(namespace, name)
        if link.reading is not None and link.failures < PATIENCE:
            return _reached(link, link.reading.stats, pooled=spec.pooled)
        if link.problem_code in {"schema_too_old", "schema_too_new"} and not spec.migrates:
            reason = "SchemaTooOld" if link.problem_code == "schema_too_old" else "SchemaTooNew"
            return verdicts.stalled(
                reason, f"{link.name}: {link.problem}; run `poolkeeper migrate --apply` as the owner"
            )
        if link.reading is None and not link.failures:
            return verdicts.waiting("Connecting", f"{link.name}: connecting")
        if link.problem_code in STALLS:
            return verdicts.stalled(STALLS[link.problem_code], f"{link.name}: {link.problem}")
        if link.problem_code in WAITS:
            text = f"{link.name}: {link.problem}; it is tried again on its own"
            return verdicts.waiting(WAITS[link.problem_code], text)
        return verdicts.waiting("Unreachable", f"{link.name}: {link.problem}; it is tried again on its own")

    async def _write(self, manifest: Mapping[str, Any], secret: str | None, conditions: list[Condition]) -> None:
        meta, present = manifest["metadata"], manifest.get("status") or {}
        link = self._context.links.get((meta["namespace"], meta["name"]))
        reading = link.reading if link else None
        metrics.DATABASE_READY.labels(meta["namespace"], meta["name"]).set(conditions[0].status == "True")
        kinds: list[str] = []
        if reading is not None and link is not None and not link.failures:
            held = vacuum_held(reading.stats, present)
            conditions = [*conditions, held]
            kinds = [held.type] if held.status == "True" else []
            metrics.tell_vacuum(meta["namespace"], meta["name"], reading.stats.vacuum, held=bool(kinds))
        merged = merge(
            present.get("conditions") or [], conditions, generation=meta["generation"], now=self._context.now()
        )
        status = DatabaseStatus(
            observed_generation=meta["generation"],
            instance_id=str(reading.stats.instance_id) if reading else present.get("instanceID"),
            server_version=reading.stats.server_version if reading else present.get("serverVersion"),
            schema_version=reading.stats.schema_version if reading else present.get("schemaVersion"),
            secret_version=secret or present.get("secretVersion"),
            trouble=in_words(kinds) if reading else present.get("trouble"),
        ).as_status()
        await self._context.write_status(DATABASE, manifest, {**status, "conditions": merged})

    async def _leave(self, namespace: str, name: str) -> float | None:
        """Database or Secret is gone. Its connection stays while a queue is being purged, or may be about to: they go together."""
        since = self._left.setdefault((namespace, name), time.monotonic())
        if self._purging(namespace, name):
            return SOON
        waiting = any(is_purging(queue) for queue in self._queues_of(namespace, name))
        held = (namespace, name) in self._context.links  # once it is let go there is nothing to wait for
        if waiting and held and time.monotonic() - since < TOGETHER:
            return CONNECTING
        self._left.pop((namespace, name), None)
        await self._forget(namespace, name)
        return None

    def _purging(self, namespace: str, name: str) -> bool:
        """Whether a queue of this database is being removed and needs the connection that there is."""
        queues = self._queues_of(namespace, name)
        return any(is_purging(queue) and "deletionTimestamp" in queue["metadata"] for queue in queues)

    def _queues_of(self, namespace: str, name: str) -> list[Mapping[str, Any]]:
        return [
            queue
            for queue in self._context.world.all(QUEUE.kind)
            if queue["metadata"]["namespace"] == namespace and database_name(queue) == name
        ]

    async def _forget(self, namespace: str, name: str) -> None:
        self._context.judged.discard((namespace, name))
        self._told.pop((namespace, name), None)
        self._context.serving.pop((namespace, name), None)
        link = self._context.links.pop((namespace, name), None)
        if link is not None:
            await link.close()
            self._context.loops.ended(link.loop_name)
        self._ticks.forget(namespace, name)  # not before: a reading that is under way tells its figures once more
        if link is None:
            return
        for resource in (QUEUE, POOL):  # they must hear that there is nothing to read any more
            for manifest in self._context.world.all(resource.kind):
                if manifest["metadata"]["namespace"] == namespace:
                    self._context.enqueue(resource, namespace, manifest["metadata"]["name"])


def _reached(link: Link, stats: Stats, *, pooled: bool) -> list[Condition]:
    if stats.held:
        text = f"{link.name}: nothing is claimed, because this database came back as another one ({stats.held})"
        return verdicts.stalled(
            "Held", f"{text}; see that no other copy is in use, then run `poolkeeper db accept --why …`"
        )
    hint = "" if pooled or not link.pooled else UNTOLD_POOLER
    return verdicts.ready("Reachable", f"schema {stats.schema_version}{hint}")


class MigrationFailed(Exception):
    """The schema could not be brought up to date."""

    expected = True


def _apply(dsn: str) -> None:
    with connect(dsn, name="poolkeeper migrate") as conn:
        migrate.apply(conn, say=lambda line: log.info("database.migrated: %s", line))
