"""Logins of pools: two in turn, made by the store for the operator, who needs no right to make roles (O5, Q51)."""

import secrets
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from fixtures.logins import POOL, QUEUES, Logins
from fixtures.postgres import Database, create
from poolkeeper.codes import Code
from poolkeeper.errors import Forbidden, Misconfigured
from poolkeeper.store import Session, Settle, calls, connect, migrate, run
from poolkeeper.store.logins import dsn_as, new_password, verifier


def register(conn: Any, pool: str = POOL, queue: str = "team/mail") -> Session:
    return run(conn, calls.register_session(pool, [queue], ["a.b"], concurrency=5, info={}))


def test_a_login_works_for_its_own_pool_and_queues_and_for_nothing_else(logins: Logins) -> None:
    """O5, Q51: equal names in another namespace included; who has none of its own reaches neither."""
    mine = connect(logins.make())
    theirs = connect(logins.make(pool="other/mail", queues=["other/mail"]))
    for queue in ("team/mail", "other/mail"):
        logins.submit(queue)
    for conn, here, there in ((mine, "team", "other"), (theirs, "other", "team")):
        (claimed,) = run(conn, calls.turn(register(conn, f"{here}/mail", f"{here}/mail"), 1, 0, [], 5)).claimed
        assert claimed.queue == f"{here}/mail"
        for pool, queue in (
            (f"{there}/mail", f"{there}/mail"),
            (f"{here}/mail", f"{there}/mail"),
            (f"{there}/mail", f"{here}/mail"),
        ):
            with pytest.raises(Forbidden):
                register(conn, pool, queue)
        assert run(conn, calls.submit(f"{there}/mail", "a.b", 1)).code is Code.UNKNOWN_QUEUE
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("SELECT * FROM poolkeeper.task")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("CREATE ROLE another LOGIN")
        with pytest.raises(Forbidden):
            run(conn, calls.pool_logins(here))
        with pytest.raises(Forbidden):
            run(conn, calls.retire_pool_login(f"{there}/mail", "a"))
    for conn in (mine, theirs):
        conn.close()


def test_tenants_of_a_pool_are_the_roles_own_limit(logins: Logins) -> None:
    """Q51: whatever its process asks for; changed without another password."""
    dsn = logins.make(tenants=["acme"])
    for tenant in ("acme", "globex"):
        assert run(logins.submitter, calls.submit("team/mail", "a.b", 1, tenant=tenant)).code is None
    with connect(dsn) as conn:
        claimed = run(conn, calls.turn(register(conn), 1, 0, [], 5)).claimed
        assert [task.tenant for task in claimed] == ["acme"]
    assert logins.ask(calls.set_pool_login(POOL, "a", None, queues=QUEUES, tenants_except=["acme"])) is not None
    with connect(dsn) as conn:
        claimed = run(conn, calls.turn(register(conn), 1, 0, [], 5)).claimed
        assert [task.tenant for task in claimed] == ["globex"]
    assert logins.ask(calls.set_pool_login(POOL, "b", None, queues=QUEUES)) is None, "there is none"
    assert logins.seen().keys() == {(POOL, "a")}


def test_a_password_is_told_by_its_verifier_alone_and_is_needed(logins: Logins) -> None:
    """O5: the server takes what Postgres itself would have made of the password; a plain one is refused before it is used."""
    dsn = logins.make()
    with connect(dsn) as conn:
        register(conn)
    wrong = dsn_as(dsn, str(conninfo_to_dict(dsn)["user"]), new_password())
    with pytest.raises(Misconfigured) as caught:
        connect(wrong)
    assert caught.value.code is Code.LOGIN_REFUSED
    for plain in ("secret", "md5" + "0" * 32, "", "SCRAM-SHA-256$4096:c2FsdA==$x:y", verifier("x") + "\n"):
        with pytest.raises(psycopg.Error, match="verifier alone"):
            logins.ask(calls.set_pool_login(POOL, "a", plain, queues=QUEUES))
    (stored,) = (
        logins.owner.execute("SELECT rolpassword FROM pg_authid WHERE rolname LIKE 'poolkeeper\\_pool\\_%'").fetchone()
        or ()
    )
    assert stored.startswith("SCRAM-SHA-256$4096:")
    assert conninfo_to_dict(dsn)["password"] not in stored


def test_what_one_login_began_the_other_goes_on_with(logins: Logins) -> None:
    """O5, Q17: session, lease and token are the pool's; no delivery is lost, and none is run again."""
    first = connect(logins.make("a"))
    session = register(first)
    logins.submit(count=2)
    one, two = run(first, calls.turn(session, 1, 0, [], 2)).claimed
    second = connect(logins.make("b"))
    first.close()
    assert run(second, calls.renew(session, 1, [one.task_id, two.task_id])).lost == []
    answer = run(second, calls.turn(session, 2, 1, [Settle(t.task_id, t.token, "succeeded") for t in (one, two)], 5))
    assert [(v.code, v.state) for v in answer.verdicts] == [(None, "succeeded")] * 2
    run(second, calls.end_session(session))
    second.close()


def test_a_session_is_not_another_pools(logins: Logins) -> None:
    """Q51: also with its secret in hand; nor a login's whose pool was taken away."""
    mine, theirs = connect(logins.make()), connect(logins.make(pool="team/other"))
    session = register(mine)
    with pytest.raises(psycopg.Error, match="unknown session"):
        run(theirs, calls.renew(session, 0, []))
    twin = connect(logins.make("b"))
    logins.owner.execute("UPDATE poolkeeper.access SET pool = NULL WHERE role LIKE '%\\_b'")
    with pytest.raises(psycopg.Error, match="unknown session"):
        run(twin, calls.renew(session, 0, []))
    for conn in (mine, theirs, twin):
        conn.close()


def test_a_login_goes_when_nobody_uses_it_step_by_step(logins: Logins) -> None:
    """O5: in use it stays as it is; then nobody new comes in; then it is gone, with its row, and can be made again."""
    dsn = logins.make()
    conn = connect(dsn)
    assert logins.seen() == {(POOL, "a"): (True, 1)}
    found = logins.ask(calls.retire_pool_login(POOL, "a"))
    assert (found.state, found.connections) == ("in_use", 1)
    with connect(dsn):
        assert logins.ask(calls.retire_pool_login(POOL, "a")).connections == 2
    register(conn)
    conn.close()
    states: list[str] = []
    while not states or states[-1] != "gone":
        states.append(logins.ask(calls.retire_pool_login(POOL, "a")).state)
        if states[-1] == "closed":
            with pytest.raises(Misconfigured):
                connect(dsn)
            assert logins.seen() == {(POOL, "a"): (False, 0)}
    assert [state for state in states if state != "in_use"] == ["closed", "gone"]
    assert logins.seen() == {}
    with connect(logins.owner.info.dsn) as owner:
        assert owner.execute("SELECT count(*) FROM poolkeeper.access WHERE pool = %s", [POOL]).fetchone() == (0,)
    with connect(logins.make()) as again:
        register(again)


def test_what_is_done_to_one_login_leaves_the_others(logins: Logins) -> None:
    """O5: the pool's other one, and those of another pool or namespace; who asks for one pool hears of that one."""
    gone, twin, other = logins.make("a"), logins.make("b"), logins.make(pool="team/other")
    logins.make(pool="other/mail", queues=["other/mail"])
    states: list[str] = []
    while "gone" not in states:
        states.append(logins.ask(calls.retire_pool_login(POOL, "a")).state)
    with pytest.raises(Misconfigured):
        connect(gone)
    assert logins.seen() == {(POOL, "b"): (True, 0), ("team/other", "a"): (True, 0)}
    assert logins.seen("other") == {("other/mail", "a"): (True, 0)}
    assert [each.slot for each in logins.ask(calls.pool_logins("team", POOL))] == ["b"]
    for dsn, pool in ((twin, POOL), (other, "team/other")):
        with connect(dsn) as conn:
            register(conn, pool)


def test_what_is_allowed_already_is_not_written_again(logins: Logins) -> None:
    """O5: the operator says it once a minute, and rows that it leaves are read by every call of that login."""
    row = "SELECT xmin::text FROM poolkeeper.access WHERE pool = %s"
    logins.make(tenants=["acme"])
    before = logins.owner.execute(row, [POOL]).fetchone()
    assert logins.ask(calls.set_pool_login(POOL, "a", None, queues=QUEUES, tenants=["acme"])) is not None
    assert logins.owner.execute(row, [POOL]).fetchone() == before
    assert logins.ask(calls.set_pool_login(POOL, "a", None, queues=QUEUES, tenants=["globex"])) is not None
    assert logins.owner.execute(row, [POOL]).fetchone() != before


def test_a_row_goes_with_its_login_whatever_was_made_of_it(logins: Logins) -> None:
    """O5: by hand, without its pool, it would allow everything to a role that is no more."""
    logins.make()
    logins.owner.execute("UPDATE poolkeeper.access SET pool = NULL WHERE pool = %s", [POOL])
    states: list[str] = []
    while "gone" not in states:
        states.append(logins.ask(calls.retire_pool_login(POOL, "a")).state)
    left = "SELECT count(*) FROM poolkeeper.access WHERE starts_with(role, 'poolkeeper_pool_')"
    assert logins.owner.execute(left).fetchone() == (0,)


def test_a_pool_hears_of_no_logins(logins: Logins) -> None:
    """Q51: whatever groups its role was put into by mistake; nor does it change any."""
    dsn = logins.make()
    role = sql.Identifier(str(conninfo_to_dict(dsn)["user"]))
    logins.owner.execute(sql.SQL("GRANT poolkeeper_operator TO {}").format(role))
    with connect(dsn) as conn:
        assert run(conn, calls.pool_logins("team")) == []
        with pytest.raises(Forbidden):
            run(conn, calls.set_pool_login(POOL, "b", verifier(new_password()), queues=QUEUES))
        with pytest.raises(Forbidden):
            run(conn, calls.retire_pool_login(POOL, "a"))


def test_no_other_role_can_be_meant(logins: Logins) -> None:
    """O5: whatever is asked; a role of that name that may more than a pool may is left alone."""
    everybody = "SELECT rolname, rolsuper, rolcanlogin FROM pg_roles ORDER BY 1"
    before = logins.owner.execute(everybody).fetchall()
    for pool, slot, queues in (
        (POOL, "c", QUEUES),
        (POOL, "a'; DROP ROLE postgres", QUEUES),
        (POOL, "a", ["other/mail"]),
        (POOL, "a", []),
        (POOL, "a", ["team/mail", None]),
        ("", "a", QUEUES),
        ("team/" + "x" * 200, "a", QUEUES),
        ("team/mail\x07", "a", QUEUES),
    ):
        with pytest.raises(psycopg.Error) as refused:
            logins.ask(calls.set_pool_login(pool, slot, verifier("x"), queues=queues))  # type: ignore[arg-type]
        assert refused.value.sqlstate == "PK400"
    assert logins.owner.execute(everybody).fetchall() == before
    logins.make()
    (role,) = logins.owner.execute("SELECT poolkeeper.pool_login(%s, 'a')", [POOL]).fetchone() or ()
    logins.owner.execute(sql.SQL("ALTER ROLE {} CREATEROLE").format(sql.Identifier(role)))
    with pytest.raises(Forbidden):
        logins.make()
    logins.owner.execute(sql.SQL("ALTER ROLE {} NOCREATEROLE").format(sql.Identifier(role)))


def test_who_is_limited_gives_no_more_than_it_has(logins: Logins) -> None:
    """Q51: an operator's login with queues or tenants of its own."""
    allow = "UPDATE poolkeeper.access SET queues = %s, tenants = %s WHERE role = %s"
    login = logins.database.login("operator")
    logins.owner.execute(allow, [["team/mail"], None, login])
    logins.make()
    assert logins.seen() == {(POOL, "a"): (True, 0)}
    with pytest.raises(Forbidden):
        logins.make(queues=["team/mail", "team/secret"])
    logins.owner.execute(allow, [["team/elsewhere"], None, login])
    assert logins.seen() == {}
    with pytest.raises(Forbidden):
        logins.ask(calls.retire_pool_login(POOL, "a"))
    logins.owner.execute(allow, [None, ["acme"], login])
    with pytest.raises(Forbidden):
        logins.make(tenants=["acme"])
    logins.owner.execute(allow, [None, None, login])


def test_the_owner_needs_no_superuser_and_is_told_what_it_lacks(by_password: Callable[[], Database]) -> None:
    """O5: CREATEROLE and ADMIN OPTION on one group suffice; the operator has neither."""
    base = by_password()
    bare = create(base.dsn, f"pk_test_{secrets.token_hex(4)}")
    owner = sql.Identifier(bare.login("nobody"))
    with bare.connect() as conn:
        conn.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(bare.name), owner))
    with connect(bare.dsn_as("nobody")) as conn:
        assert migrate.apply(conn, say=lambda _: None) > 0
    logins = Logins(bare)
    try:
        with pytest.raises(Forbidden, match="WITH ADMIN OPTION"):
            logins.make()
        logins.owner.execute(sql.SQL("ALTER ROLE {} CREATEROLE").format(owner))
        with (
            pytest.raises(Forbidden, match="WITH ADMIN OPTION")
            if logins.owner.info.server_version >= 160000
            else nullcontext()
        ):
            logins.make()
        logins.owner.execute(sql.SQL("GRANT poolkeeper_worker TO {} WITH ADMIN OPTION").format(owner))
        for _ in range(2):  # made, and given another password
            with connect(logins.make()) as conn:
                register(conn)
        operators = "SELECT rolcreaterole FROM pg_roles WHERE rolname = %s"
        assert logins.owner.execute(operators, [bare.login("operator")]).fetchone() == (False,)
        states: list[str] = []
        while "gone" not in states:
            states.append(logins.ask(calls.retire_pool_login(POOL, "a")).state)
    finally:
        logins.close()
        base.drop()


def test_a_login_on_which_something_depends_stays_closed(logins: Logins) -> None:
    """O5: somebody granted it a table of the application's; that is not an error, and not ours to take away."""
    role = conninfo_to_dict(logins.make())["user"]
    logins.owner.execute("CREATE TABLE public.orders (id integer)")
    logins.owner.execute(sql.SQL("GRANT SELECT ON public.orders TO {}").format(sql.Identifier(str(role))))
    for _ in range(3):
        assert logins.ask(calls.retire_pool_login(POOL, "a")).state == "closed"
    assert logins.seen() == {(POOL, "a"): (False, 0)}
    with pytest.raises(Misconfigured):
        connect(dsn_as(logins.database.dsn, str(role), "any"))
    with connect(logins.make()) as conn:
        conn.execute("SELECT * FROM public.orders")
    logins.owner.execute(sql.SQL("REVOKE ALL ON public.orders FROM {}").format(sql.Identifier(str(role))))
    assert [logins.ask(calls.retire_pool_login(POOL, "a")).state for _ in range(2)] == ["closed", "gone"]
