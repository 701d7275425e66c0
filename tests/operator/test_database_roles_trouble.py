"""Trouble with logins of pools: what is refused, broken, late or missing cuts nobody off and holds up nobody else (O5)."""

import base64
import os
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from fixtures.poollogins import aged, dsn, looked_at, may_serve, roles, rotate, secret, staged, user
from fixtures.stage import until
from poolkeeper.store.logins import dsn_as
from poolkeeper_operator.act import loginsecret
from poolkeeper_operator.decide.logins import Issued
from poolkeeper_operator.runtime import login
from poolkeeper_operator.runtime.failures import KubeError
from poolkeeper_operator.runtime.kinds import SECRET
from poolkeeper_operator.runtime.kube import Kube

pytestmark = pytest.mark.wide
FOREIGN = '[{"op": "remove", "path": "/metadata/ownerReferences"}, {"op": "remove", "path": "/metadata/labels"}]'


@pytest.fixture
def stage(crds, kubectl, namespace, logins):
    yield from staged(kubectl, namespace, logins)


def reaches(stage, pods):
    """The pool's size follows what is asked for, whatever its login's trouble is."""
    stage.kubectl("patch", "workerpool", "mail", "--type=merge", "-p", f'{{"spec": {{"scaling": {{"min": {pods}}}}}}}')
    until(lambda: stage.replicas("mail") == pods, timeout=90, what=f"{pods} pods")


def test_what_somebody_broke_is_made_again(stage, operator):
    """O5: a Secret that was deleted, a role that was dropped, a database that moved to another address."""
    stage.apply(stage.db(roles="PerPool"), stage.queue("mail"), stage.pool("mail"))
    pool = f"{stage.namespace}/mail"
    dsn(stage)
    stage.kubectl("delete", "secret", "poolkeeper-role-mail")
    looked_at(stage)
    text = dsn(stage)
    assert may_serve(text, pool, pool)
    with psycopg.connect(stage.database.dsn, autocommit=True) as conn:
        conn.execute(f'DROP ROLE "{user(text)}"')
    until(lambda: looked_at(stage) or dsn(stage) != text)
    text = dsn(stage)
    assert may_serve(text, pool, pool)
    nobodys = base64.b64encode(b"postgresql://nobody@127.0.0.1/nothing").decode()
    stage.kubectl("patch", "secret", "poolkeeper-role-mail", "-p", f'{{"data": {{"dsn": "{nobodys}"}}}}')
    until(lambda: looked_at(stage) or "nobody" not in dsn(stage), timeout=90, what="a DSN without a password is none")
    text = dsn(stage)
    assert may_serve(text, pool, pool)
    moved = (
        dsn_as(stage.database.dsn_as("operator"), stage.database.login("operator"), "test") + " application_name=moved"
    )
    stage.apply(stage.secret(dsn=moved))
    stage.kubectl("annotate", "database", "main", "example.com/poke=1")
    until(lambda: "application_name=moved" in dsn(stage), timeout=90)
    assert conninfo_to_dict(dsn(stage))["password"] == conninfo_to_dict(text)["password"]


async def test_a_secret_is_written_as_it_was_seen_or_not_at_all(stage, operator, kubeconfig):
    """O5, O29: an apply that arrives after the next one would bring back a password that the database has no more."""
    stage.apply(stage.db(roles="PerPool"), stage.queue("mail"), stage.pool("mail"))
    dsn(stage)
    pool, seen = stage.get("workerpool", "mail"), secret(stage)
    text = rotate(stage, "one")
    kube = Kube(await login.load(str(kubeconfig)))
    kube.permit = lambda: 5.0
    late = Issued("a", datetime.now(UTC), "")
    with pytest.raises(KubeError) as refused:
        await kube.apply(SECRET, loginsecret.build(pool, "late", late, {"dsn": "postgresql://late:x@h"}, seen=seen))
    await kube.close()
    assert refused.value.conflict
    assert dsn(stage) == text


def test_a_login_that_cannot_go_keeps_no_other_from_going(stage, operator):
    """O5, P6: somebody holds the role of one pool that is gone; the other's goes, and that one later."""
    names = ("atlas", "mail")
    stage.apply(stage.db(roles="PerPool"), *(each for n in names for each in (stage.queue(n), stage.pool(n))))
    first, second = (user(dsn(stage, name)) for name in names)

    def poked(wanted):
        stage.kubectl("annotate", "--overwrite", "database", "main", f"example.com/poke={os.urandom(4).hex()}")
        return roles(stage) == wanted

    with psycopg.connect(stage.database.dsn) as holder:
        holder.execute(f'ALTER ROLE "{first}" CONNECTION LIMIT 5')
        stage.kubectl("delete", "workerpool", *names)
        until(lambda: poked([first]), timeout=120, what=f"{second} is gone")
        holder.rollback()
    until(lambda: poked([]), timeout=90)


def test_what_is_missing_is_said_and_no_pod_starts_without_a_login(stage, operator, logins):
    """O5, O31: an owner without the right to make roles, and a foreign Secret of that name; each heals by itself."""
    with psycopg.connect(stage.database.dsn, autocommit=True) as conn:
        conn.execute("CREATE ROLE plain_owner NOLOGIN")
        conn.execute("GRANT ALL ON SCHEMA poolkeeper TO plain_owner")
        conn.execute("GRANT ALL ON ALL TABLES IN SCHEMA poolkeeper TO plain_owner")
        conn.execute("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA poolkeeper TO plain_owner")
        signature = "poolkeeper.set_pool_login(text, text, text, text[], text[], text[], uuid)"
        conn.execute(f"ALTER FUNCTION {signature} OWNER TO plain_owner")
        stage.apply(stage.db(roles="PerPool"), stage.queue("mail"), stage.pool("mail"))
        said = stage.wait_condition("workerpool", "mail", "Ready", "False", "DatabaseRoleRefused")["message"]
        assert "ALTER ROLE plain_owner CREATEROLE; GRANT poolkeeper_worker TO plain_owner WITH ADMIN OPTION" in said
        assert stage.get("deployment", "mail") is None
        conn.execute(f"ALTER FUNCTION {signature} OWNER TO CURRENT_USER")
        conn.execute("DROP OWNED BY plain_owner")
        conn.execute("DROP ROLE plain_owner")
    until(lambda: looked_at(stage) or stage.get("deployment", "mail"), timeout=90)
    stage.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "poolkeeper-role-other"}})
    stage.apply(stage.queue("other"), stage.pool("other"))
    said = stage.wait_condition("workerpool", "other", "Ready", "False", "Refused")["message"]
    assert 'Secret "poolkeeper-role-other" is there already and not the pool\'s' in said
    stage.kubectl("delete", "secret", "poolkeeper-role-other")
    until(lambda: stage.get("deployment", "other"), timeout=90)


def test_a_right_that_could_not_be_changed_is_changed_later(stage, operator):
    """Q51, P10: a failed look is no look: what a pool may not see any more it does not see, without another change of its spec."""
    stage.apply(stage.db(roles="PerPool"), stage.queue("mail"), stage.pool("mail"))
    role = user(dsn(stage))
    right = "EXECUTE ON FUNCTION poolkeeper.set_pool_login(text, text, text, text[], text[], text[], uuid)"
    tenants = "SELECT tenants FROM poolkeeper.access WHERE role = %s"
    with psycopg.connect(stage.database.dsn, autocommit=True) as conn:
        conn.execute(f"REVOKE {right} FROM poolkeeper_operator")
        stage.apply(stage.pool("mail", tenants={"only": ["acme"]}))
        until(lambda: any("pool.login" in str(line) for line in operator.lines()), what="it cannot be changed")
        assert conn.execute(tenants, [role]).fetchone() == (None,)
        conn.execute(f"GRANT {right} TO poolkeeper_operator")
        until(lambda: conn.execute(tenants, [role]).fetchone() == (["acme"],), timeout=150, what="it is")


def test_what_is_refused_of_a_login_does_not_keep_its_pool_from_being_sized(stage, operator):
    """O5, P6: a login that was granted something elsewhere, a Secret that nobody may change, one that is somebody else's."""
    stage.apply(stage.db(roles="PerPool"), stage.queue("mail"), stage.pool("mail"))
    stage.wait_condition("workerpool", "mail", "Ready", "True")
    first = user(dsn(stage))
    with psycopg.connect(stage.database.dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE public.orders (id integer)")
        conn.execute(f'GRANT SELECT ON public.orders TO "{first}"')
    rotate(stage, "one")
    aged(stage)

    def closed():
        looked_at(stage)
        with psycopg.connect(stage.database.dsn) as conn:
            return conn.execute("SELECT rolcanlogin FROM pg_roles WHERE rolname = %s", [first]).fetchone() == (False,)

    until(closed, timeout=90)
    looked_at(stage)
    reaches(stage, 2)
    assert first in roles(stage), "what depends on it is not ours to drop"
    stage.kubectl("patch", "secret", "poolkeeper-role-mail", "-p", '{"immutable": true}')
    stage.kubectl("annotate", "--overwrite", "workerpool", "mail", "poolkeeper.dev/rotate-login=two")
    until(lambda: any("is immutable" in str(line) for line in operator.lines()), timeout=90)
    reaches(stage, 3)
    stage.kubectl("patch", "secret", "poolkeeper-role-mail", "--type=json", "-p", FOREIGN)
    looked_at(stage)
    said = stage.wait_condition("workerpool", "mail", "Ready", "False", "Refused")["message"]
    assert 'Secret "poolkeeper-role-mail" is there already and not the pool\'s' in said
    reaches(stage, 4)
    stage.kubectl("delete", "secret", "poolkeeper-role-mail")
    looked_at(stage)
    until(lambda: stage.condition("workerpool", "mail", "Ready")["reason"] != "Refused", timeout=90)
    assert may_serve(dsn(stage), f"{stage.namespace}/mail", f"{stage.namespace}/mail")
    with psycopg.connect(stage.database.dsn, autocommit=True) as conn:
        conn.execute("DROP TABLE public.orders")
