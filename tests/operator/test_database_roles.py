"""Database logins of pools: made, rotated under load, and let go, on a real API server and a Postgres that asks for passwords (O5)."""

import os
import threading

import psycopg
import pytest

from fixtures.identities import chart_rights
from fixtures.poollogins import aged, dsn, looked_at, may_serve, roles, rotate, secret, staged, user
from fixtures.stage import Stage, until
from fixtures.workers import Stage as Workers
from poolkeeper.errors import Misconfigured
from poolkeeper.store import calls, connect, run
from poolkeeper.store.logins import password_of

pytestmark = pytest.mark.wide


@pytest.fixture
def stage(crds, kubectl, namespace, logins):
    yield from staged(kubectl, namespace, logins)


def test_equal_names_in_two_namespaces_never_meet(stage, make_namespace, start_operator, kubectl, logins):
    """O1, O5, Q51: one database, one operator; each pool's login reaches its own queue, and not a task of the other's."""
    other = make_namespace()
    there = Stage(kubectl, other, logins.database)
    start_operator("--namespace", stage.namespace, "--namespace", other).wait_ready()
    there.apply(there.secret(dsn=logins.database.dsn_as("operator")))
    for at in (stage, there):
        at.apply(at.db(roles="PerPool"), at.queue("mail"), at.pool("mail"))
    for at in (stage, there):
        at.wait_condition("workerpool", "mail", "Ready", "True")
    stage.submit("mail", 3)
    until(lambda: stage.replicas("mail") == 3)
    assert there.replicas("mail") == 0
    mine, theirs = dsn(stage), dsn(there)
    assert user(mine) != user(theirs)
    for text, here, away in ((mine, stage, there), (theirs, there, stage)):
        assert may_serve(text, f"{here.namespace}/mail", f"{here.namespace}/mail")
        assert not may_serve(text, f"{away.namespace}/mail", f"{away.namespace}/mail")
        assert not may_serve(text, f"{here.namespace}/mail", f"{away.namespace}/mail")
    with connect(theirs) as conn:
        session = run(
            conn, calls.register_session(f"{other}/mail", [f"{other}/mail"], ["demo.echo"], concurrency=9, info={})
        )
        assert run(conn, calls.turn(session, 1, 0, [], 9)).claimed == []
    there.close()


def test_the_pods_mount_the_pools_own_secret_and_nothing_else(stage, operator):
    """O5: owned by its pool; the shared Secret is in no pod any more; an unchanged pool is not written again."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail"))
    stage.wait_condition("workerpool", "mail", "Ready", "True")
    assert secret(stage) is None
    shared = stage.get("deployment", "mail")
    stage.apply(stage.db(roles="PerPool"))

    def mounted():
        pod = stage.get("deployment", "mail")["spec"]["template"]["spec"]
        (found,) = (v for v in pod["volumes"] if v["name"] == "poolkeeper-database")
        return found["projected"]["sources"] == [
            {"secret": {"name": "poolkeeper-role-mail", "items": [{"key": "dsn", "path": "dsn"}]}}
        ]

    until(mounted)
    made = secret(stage)
    (owner,) = made["metadata"]["ownerReferences"]
    assert owner["uid"] == stage.get("workerpool", "mail")["metadata"]["uid"]
    label = "poolkeeper.dev/build"
    assert stage.get("deployment", "mail")["metadata"]["labels"][label] != shared["metadata"]["labels"][label]
    assert may_serve(dsn(stage), f"{stage.namespace}/mail", f"{stage.namespace}/mail")
    password = password_of(dsn(stage))
    assert password not in "".join(str(line) for line in operator.lines())
    looked_at(stage)
    until(
        lambda: (
            stage.status("workerpool", "mail")["observedGeneration"]
            == stage.get("workerpool", "mail")["metadata"]["generation"]
        )
    )
    assert secret(stage)["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


def test_queues_and_tenants_of_the_role_follow_the_pool(stage, operator):
    """Q51: at once, and without another password."""
    stage.apply(stage.db(roles="PerPool"), stage.queue("mail"), stage.queue("more"), stage.pool("mail"))
    text = dsn(stage)
    pool = f"{stage.namespace}/mail"
    assert not may_serve(text, pool, f"{stage.namespace}/more")
    stage.apply(stage.pool("mail", "mail", "more", tenants={"only": ["acme"]}))
    until(lambda: may_serve(text, pool, f"{stage.namespace}/more"))
    assert dsn(stage) == text
    with psycopg.connect(stage.database.dsn) as conn:
        assert conn.execute("SELECT tenants FROM poolkeeper.access WHERE role = %s", [user(text)]).fetchone() == (
            ["acme"],
        )


def test_a_rotation_under_load_loses_no_task_and_no_delivery(stage, operator, tmp_path):
    """O5: real workers, the Secret as kubelets bring it; the login before goes by itself when nobody is connected by it."""
    stage.apply(stage.db(roles="PerPool"), stage.queue("mail", visibilityTimeout="5s"), stage.pool("mail"))
    path, file = f"{stage.namespace}/mail", tmp_path / "dsn"
    over = threading.Event()

    def bring():
        fresh = file.with_suffix(".new")
        fresh.write_text(dsn(stage))
        fresh.replace(file)

    def kubelet():
        while not over.wait(0.5):
            bring()

    bring()
    thread = threading.Thread(target=kubelet)
    thread.start()
    workers = Workers(stage.database.dsn, tmp_path)
    try:
        env = {"POOLKEEPER_DSN": "", "POOLKEEPER_DSN_FILE": str(file), "POOLKEEPER_POOL": path}
        running = [workers.worker(env, queues=path) for _ in range(2)]
        for each in running:
            each.ready()
        long = workers.submit("t.hold", "end", queue=path)
        workers.note("in", long)
        submitted = []
        first = dsn(stage)
        names = [user(first)]
        for wish in ("one", "two"):
            names.append(user(rotate(stage, wish)))
            aged(stage)

            def only_the_new_one():
                submitted.extend(workers.submit_many("t.count", [1] * 20, queue=path))
                looked_at(stage)
                return roles(stage) == names[-1:]

            until(only_the_new_one, timeout=120, what="the login before is gone")
        assert names[0] == names[2] != names[1], "two logins in turn"
        workers.release("end")
        for task in [long, *submitted]:
            workers.ends(task)
            assert workers.deliveries(task) == ["succeeded"]
        assert all(each.process.poll() is None for each in running)
        with pytest.raises(Misconfigured):
            connect(first)
    finally:
        over.set()
        thread.join()
        workers.close()


def test_who_is_connected_by_the_login_before_keeps_it(stage, operator):
    """O5: no password is changed under it, and it is not closed, however long that takes; a third one waits."""
    stage.apply(stage.db(roles="PerPool"), stage.queue("mail"), stage.pool("mail"))
    first = dsn(stage)
    with connect(first) as held:
        second = rotate(stage, "one")
        aged(stage)
        stage.kubectl("annotate", "--overwrite", "workerpool", "mail", "poolkeeper.dev/rotate-login=two")
        for _ in range(3):
            looked_at(stage)
            generation = stage.get("workerpool", "mail")["metadata"]["generation"]
            until(lambda: stage.status("workerpool", "mail")["observedGeneration"] == generation)
        assert dsn(stage) == second
        held.execute("SELECT 1")
        with connect(first):
            pass
    until(lambda: looked_at(stage) or dsn(stage) != second, what="free again, it is the next one")
    assert user(dsn(stage)) == user(first)


def test_logins_go_with_their_pool_and_with_the_wish_for_them(stage, operator):
    """O5, O9: nothing of a deleted pool may log in; back to Shared the pods mount the shared Secret."""
    stage.apply(
        stage.db(roles="PerPool"), *(each for n in ("mail", "more") for each in (stage.queue(n), stage.pool(n)))
    )
    names = {pool: user(dsn(stage, pool)) for pool in ("mail", "more")}
    assert roles(stage) == sorted(names.values())
    stage.kubectl("delete", "workerpool", "more")

    def poked(wanted):
        stage.kubectl("annotate", "--overwrite", "database", "main", f"example.com/poke={os.urandom(4).hex()}")
        return roles(stage) == wanted

    until(lambda: poked([names["mail"]]), timeout=90)
    until(lambda: secret(stage, "more") is None)
    stage.apply(stage.db())
    until(lambda: "poolkeeper-role-mail" not in str(stage.get("deployment", "mail")["spec"]))
    until(lambda: poked([]), timeout=90)


def test_the_operator_writes_no_secret_unless_the_chart_says_so(stage, start_operator, make_identity, helm):
    """O31: it begins without the right, names it where it is missed, and goes on by itself when it is there."""
    identity = make_identity("poolkeeper-operator", rights=chart_rights(stage, helm))
    argv = ("--namespace", stage.namespace, "--lease", "poolkeeper-operator")
    start_operator(*argv, kubeconfig=identity.kubeconfig).wait_ready()
    stage.apply(stage.db(roles="PerPool"), stage.queue("mail"), stage.pool("mail"))
    said = stage.wait_condition("workerpool", "mail", "Ready", "False", "SecretForbidden")["message"]
    assert "grant it create and patch on secrets (rbac.databaseRoles=true in the chart)" in said
    assert secret(stage) is None
    stage.apply(*chart_rights(stage, helm, settings=["rbac.databaseRoles=true"]))
    until(lambda: looked_at(stage) or stage.get("deployment", "mail"), timeout=90)
    assert may_serve(dsn(stage), f"{stage.namespace}/mail", f"{stage.namespace}/mail")
