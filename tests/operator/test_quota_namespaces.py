"""Whose pools may use a quota is the quota's own word, whatever a pool refers to (O4)."""

from fixtures.stage import until
from poolkeeper.store import calls


def cap(stage):
    return next((p.max_running for p in stage.run(calls.stats(cluster=None)).pools if p.pool.endswith("/mail")), None)


def selector(value):
    return {"from": "Selector", "selector": {"matchLabels": {"poolkeeper.dev/providers": value}}}


def test_namespaces_are_let_in_as_the_quota_says(stage, make_namespace, start_operator):
    """Same, Selector, All: closed with the reason, or open; a pool cannot let itself in."""
    platform = make_namespace()
    # Before the operator starts: it looks at a namespace's labels once a minute.
    stage.kubectl("label", "namespace", stage.namespace, "poolkeeper.dev/providers=yes")
    start_operator("--namespace", stage.namespace, "--namespace", platform).wait_ready()
    theirs = stage.kubectl.within(platform)
    theirs.apply(stage.quota("api", 3))
    providers = [{"name": "api", "quotaRef": {"name": "api", "namespace": platform}, "perTask": {"concurrentCalls": 1}}]
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail", providers=providers))
    stage.wait_condition("taskqueue", "mail", "Ready", "True")
    stage.submit("mail", 10)

    condition = stage.wait_condition("workerpool", "mail", "Ready", "False", "NamespaceNotAllowed")
    assert "spec.allowedNamespaces" in condition["message"]
    until(lambda: cap(stage) == 0, what="Same: closed")

    theirs.apply(stage.quota("api", 3, allowedNamespaces=selector("yes")))
    until(lambda: cap(stage) == 3, what="Selector: open for a namespace with the label")
    theirs.apply(stage.quota("api", 3, allowedNamespaces=selector("no")))
    until(lambda: cap(stage) == 0, what="Selector: closed for another value")

    theirs.apply(stage.quota("api", 3, allowedNamespaces={"from": "All"}))
    until(lambda: cap(stage) == 3, what="All: open")
