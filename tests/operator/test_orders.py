"""O5: what people do to a pool and to what bears its name, in odd orders; what is not the pool's is never taken nor removed."""

import pytest

from fixtures.stage import until


def ready(stage, name):
    stage.apply(stage.db(), stage.queue(name), stage.pool(name))
    stage.wait_condition("workerpool", name, "SignalFresh", "True", timeout=60)
    return stage.get("workerpool", name)["metadata"]["uid"]


def owned(stage, name, uid):
    """Whether the pool of that uid, and nobody else, owns all children."""
    found = [stage.get(kind, name) for kind in ("deployment", "serviceaccount", "pdb")]
    return all(each and [ref["uid"] for ref in each["metadata"].get("ownerReferences", [])] == [uid] for each in found)


@pytest.mark.wide
def test_a_pool_that_left_its_children_behind_takes_them_up_again(stage, operator):
    """`kubectl delete --cascade=orphan`, then the same again, as GitOps tools do: no pod is started anew."""
    ready(stage, "mail")
    stage.submit("mail", 2)
    until(lambda: stage.replicas("mail") == 2, timeout=60)
    old = stage.get("deployment", "mail")["metadata"]["uid"]
    stage.kubectl("delete", "workerpool", "mail", "--cascade=orphan")
    until(lambda: not stage.get("deployment", "mail")["metadata"].get("ownerReferences"), timeout=60)
    uid = ready(stage, "mail")
    until(lambda: owned(stage, "mail", uid), timeout=60)
    assert (stage.get("deployment", "mail")["metadata"]["uid"], stage.replicas("mail")) == (old, 2)


@pytest.mark.wide
def test_what_bears_the_name_of_a_pool_and_is_not_its_own_stays_as_it_is(stage, start_operator):
    """Said in the condition with the remedy; when the pool goes, it is not taken along; it heals when the name is free."""
    start_operator("--namespace", stage.namespace, "--template-policy", '{"serviceAccounts": ["own"]}').wait_ready()
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "mail"}}
    selector = {"matchLabels": {"app": "post"}}
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "post"},
        "spec": {"maxUnavailable": 1, "selector": selector},
    }
    stage.apply(account, budget, stage.db(), *(stage.queue(name) for name in ("mail", "post", "own")))
    stage.apply(stage.pool("mail"), stage.pool("post"))
    stage.apply({**account, "metadata": {"name": "own"}}, stage.pool("own", isolation={"serviceAccountName": "own"}))
    for name, kind in (("mail", "ServiceAccount"), ("post", "PodDisruptionBudget")):
        told = stage.wait_condition("workerpool", name, "Ready", "False", "Refused", timeout=60)
        assert f'{kind} "{name}" is there already and not the pool\'s' in told["message"]
    before = {kind: stage.get(kind, name) for kind, name in (("serviceaccount", "mail"), ("pdb", "post"))}
    assert not any(found["metadata"].get("ownerReferences") for found in before.values())
    assert before["pdb"]["spec"]["selector"] == selector
    stage.wait_condition("workerpool", "own", "SignalFresh", "True", timeout=60)
    assert "ownerReferences" not in stage.get("serviceaccount", "own")["metadata"]

    stage.kubectl("delete", "workerpool", "mail")
    stage.kubectl("delete", "pdb", "post")
    stage.wait_condition("workerpool", "post", "Ready", "True", timeout=90)
    uid = stage.get("workerpool", "post")["metadata"]["uid"]
    assert owned(stage, "post", uid)
    assert stage.get("serviceaccount", "mail")["metadata"]["uid"] == before["serviceaccount"]["metadata"]["uid"]


@pytest.mark.wide
def test_a_pool_made_again_with_another_queue_before_its_children_are_gone(stage, operator):
    """The children of the first are left to the cluster, those of the second are its own."""
    ready(stage, "mail")
    stage.apply(stage.queue("other"))
    stage.submit("other", 3)
    stage.kubectl("delete", "workerpool", "mail", "--wait=false")
    stage.apply(stage.pool("mail", "other"))
    uid = stage.get("workerpool", "mail")["metadata"]["uid"]
    until(lambda: owned(stage, "mail", uid) and stage.replicas("mail") == 3, timeout=90)
