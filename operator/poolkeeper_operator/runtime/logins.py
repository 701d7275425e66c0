"""Database logins of pools: made in the store, written into Secrets, rotated, and let go (O5).

Guarantees: the database has a password before a Secret tells it, and keeps the one before until nobody is connected by it, so that
whoever is stopped in between cuts nobody off; the plain password goes into the Secret and nowhere else; the operator makes no role
itself. A pool without a Deployment gets none before it has a login; one that runs goes on with what it has, whatever is refused, and
what could not be done is tried again until it is.
"""

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from poolkeeper.errors import PoolkeeperError
from poolkeeper.redact import redact
from poolkeeper.store import Fault, calls
from poolkeeper.store.logins import PoolLogin, dsn_as, new_password, password_of, verifier
from poolkeeper_operator.act import children, loginsecret
from poolkeeper_operator.decide.logins import Issued, Plan, Seen, Slot, plan
from poolkeeper_operator.observe.link import Link
from poolkeeper_operator.resources import DatabaseSpec, WorkerPoolSpec
from poolkeeper_operator.resources.database import Roles
from poolkeeper_operator.runtime.context import Context
from poolkeeper_operator.runtime.failures import KubeError, Taken
from poolkeeper_operator.runtime.kinds import DATABASE, DEPLOYMENT, POOL, SECRET
from poolkeeper_operator.runtime.memory import Looked, Memory

log = logging.getLogger(__name__)
LOOK = timedelta(seconds=60)
AGAIN = timedelta(seconds=10)  # until what went wrong is tried again
Pool = Mapping[str, Any]


class LoginProblem(Exception):
    """A pool has no login of its own; `reason` is that of the condition, the text says what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Logins:
    """See the module."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def keep(
        self, pool: Pool, spec: WorkerPoolSpec, database: DatabaseSpec, link: Link | None, memory: Memory
    ) -> None:
        """See to it that the pool has its login; raises LoginProblem where it has none, and KubeError where its Secret is not known."""
        if database.roles is not Roles.PER_POOL:
            return
        meta, now = pool["metadata"], self._context.now()
        wish = (meta.get("annotations") or {}).get(loginsecret.WISH, "")
        mark = (meta["generation"], wish, link and link.dsns)
        last = memory.login if memory.login is not None and memory.login.of == mark else None
        if last is not None and now < last.until:
            return
        secret = await self._secret(pool)
        issued = loginsecret.issued(secret)
        memory.login = None
        try:
            await self._bring(pool, spec, database, link, secret, issued, changed=last is None or not last.done)
        except (PoolkeeperError, OSError, Fault, LoginProblem, KubeError) as error:
            if isinstance(error, KubeError) and (issued is None or error.not_before):
                raise
            text = f'pool "{meta["name"]}": {redact(str(error))}'
            log.warning("pool.login: %s", text, extra={"pool": f"{meta['namespace']}/{meta['name']}"})
            if issued is None:
                reason = error.reason if isinstance(error, LoginProblem) else "DatabaseRoleRefused"
                raise LoginProblem(reason, text) from error
            memory.login = Looked(mark, now + AGAIN, done=False)
            return
        memory.login = Looked(mark, now + LOOK, done=True)

    async def _secret(self, pool: Pool) -> Mapping[str, Any] | None:
        meta = pool["metadata"]
        name = loginsecret.name_of(meta["name"])
        secret = await self._context.kube.get(SECRET, meta["namespace"], name)
        if secret is None or children.owner(secret) == meta["uid"]:
            return secret
        if why := children.taken(secret, pool):
            raise Taken(SECRET.kind, name, why)
        raise KubeError(0, f'Secret "{name}"', "an earlier pool's, not removed by the cluster yet")

    async def _bring(
        self,
        pool: Pool,
        spec: WorkerPoolSpec,
        database: DatabaseSpec,
        link: Link | None,
        secret: Mapping[str, Any] | None,
        issued: Issued | None,
        *,
        changed: bool,
    ) -> None:
        meta = pool["metadata"]
        if link is None or link.dsns is None or link.term is None or link.failures:
            text = (
                "its database is not ready, so that it has no login yet; the condition Ready of the Database says why"
            )
            raise LoginProblem("DatabaseNotReady", text)
        path, now = f"{meta['namespace']}/{meta['name']}", self._context.now()
        wish = (meta.get("annotations") or {}).get(loginsecret.WISH, "")
        there = {
            each.slot: Seen(each.open, each.connections)
            for each in await link.call(calls.pool_logins(meta["namespace"], path))
        }
        steps = plan(issued, there, now=now, every=database.role_rotation, wish=wish)
        if changed:
            await self._rights(path, spec, link, [slot for slot in there if slot != steps.make])
        if steps.make is not None:
            await self._make(pool, spec, link, steps, Issued(steps.make, now, wish), secret)
        elif secret is not None and issued is not None:
            present = loginsecret.dsns(secret)
            wanted = _dsns(link, loginsecret.role(secret), password_of(present[loginsecret.DSN]))
            if present != wanted:  # the Database leads elsewhere, or by another way
                await self._write(loginsecret.build(pool, loginsecret.role(secret), issued, wanted, seen=secret))
        if steps.retire is not None:
            await self._retire(path, steps.retire, link, was_open=there[steps.retire].open)

    async def _rights(self, path: str, spec: WorkerPoolSpec, link: Link, slots: list[Slot]) -> None:
        for slot in slots:
            await link.call(calls.set_pool_login(path, slot, None, **_limits(path, spec), term=link.term))

    async def _make(
        self,
        pool: Pool,
        spec: WorkerPoolSpec,
        link: Link,
        steps: Plan,
        issued: Issued,
        seen: Mapping[str, Any] | None,
    ) -> None:
        """First the database, then the Secret as it was seen: between the two nobody knows the new password, and nobody needs it."""
        meta = pool["metadata"]
        path, password = f"{meta['namespace']}/{meta['name']}", new_password()
        call = calls.set_pool_login(path, issued.slot, verifier(password), **_limits(path, spec), term=link.term)
        role = str(await link.call(call))
        await self._write(loginsecret.build(pool, role, issued, _dsns(link, role, password), seen=seen))
        text = f"a database login with a new password is in its Secret: {steps.why}"
        log.info("pool.login: %s: %s, %s", path, role, steps.why, extra={"pool": path})
        await self._context.tell(pool, "Normal", "LoginRotated", text)

    async def _write(self, secret: dict[str, Any]) -> None:
        meta = secret["metadata"]
        try:
            await self._context.kube.apply(SECRET, secret)
        except KubeError as error:
            if not error.forbidden:
                raise
            text = (
                f'the operator may not write secret "{meta["name"]}" in namespace "{meta["namespace"]}"; grant it create and '
                "patch on secrets (rbac.databaseRoles=true in the chart), or set roles: Shared in the Database"
            )
            raise LoginProblem("SecretForbidden", text) from error

    @staticmethod
    async def _retire(path: str, slot: Slot, link: Link, *, was_open: bool) -> None:
        found = await link.call(calls.retire_pool_login(path, slot, term=link.term))
        if found.state == "gone" or (found.state == "closed" and was_open):
            log.info("pool.login: %s: login %s is %s", path, slot, found.state, extra={"pool": path})

    async def sweep(self, namespace: str, link: Link) -> int:
        """Let go of logins whose pool is gone, or uses them no more; how many there are in the database. One that cannot go keeps no other."""
        found = await link.call(calls.pool_logins(namespace))
        for login in found:
            if self._needed(namespace, login):
                continue
            try:
                await self._retire(login.pool, login.slot, link, was_open=login.open)
            except (PoolkeeperError, OSError, Fault) as error:
                log.warning("database.logins: %s: %s: %s", link.name, login.role, redact(str(error)))
        return len(found)

    def _needed(self, namespace: str, login: PoolLogin) -> bool:
        """Whether its pool is there, and may still use it: by its Database, or by pods of a template that is being replaced."""
        world, name = self._context.world, login.pool.partition("/")[2]
        if world.get(POOL.kind, namespace, name) is None:
            return False
        databases = (each for each in world.all(DATABASE.kind) if each["metadata"]["namespace"] == namespace)
        deployment = world.get(DEPLOYMENT.kind, namespace, name) or {}
        return any((each.get("spec") or {}).get("roles") == Roles.PER_POOL for each in databases) or (
            loginsecret.name_of(name) in str(deployment.get("spec"))
        )


def _limits(path: str, spec: WorkerPoolSpec) -> dict[str, Any]:
    namespace = path.partition("/")[0]
    queues = [f"{namespace}/{queue.name}" for queue in spec.queues]
    return {"queues": queues, "tenants": spec.tenants.only or None, "tenants_except": spec.tenants.but or None}


def _dsns(link: Link, role: str, password: str) -> dict[str, str]:
    base, direct = link.dsns or ("", None)
    found = {loginsecret.DSN: dsn_as(base, role, password)}
    return found if direct is None else {**found, loginsecret.DIRECT: dsn_as(direct, role, password)}
