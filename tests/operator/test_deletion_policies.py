"""What the chart's admission policies enforce: Refuse, and who may adopt; and adoption itself (O9, contract 11)."""

import re
import shlex
from pathlib import Path

import pytest

from fixtures.remains import remains
from fixtures.stage import until
from lab.errors import LabError
from poolkeeper.policy import QueuePolicy
from poolkeeper.store import calls

POLICIES = Path(__file__).parents[2] / "charts" / "poolkeeper" / "files" / "policies"
PLAIN = QueuePolicy().to_store()


@pytest.fixture
def policy(kubectl):
    """Install one of the chart's policies; taken away at the end."""
    made = []

    def install(name):
        made.append(POLICIES / f"{name}.yaml")
        kubectl("apply", "-f", made[-1])

    yield install
    for path in made:
        kubectl("delete", "-f", path, "--ignore-not-found")


def refused(stage, *argv):
    """What the API server says to this, None if it would do it."""
    try:
        stage.kubectl(*argv, "--dry-run=server")
    except LabError as error:
        return str(error)
    return None


@pytest.mark.wide
def test_refuse_is_the_api_servers_and_its_absence_is_told(stage, operator, policy):
    """NotEnforced while the policy is not there; then nobody deletes the queue until it says otherwise."""
    stage.apply(stage.db(), stage.queue("mail", deletionPolicy="Refuse"), stage.queue("other"))
    said = stage.wait_condition("taskqueue", "mail", "NotEnforced", "True", "PolicyMissing")
    assert "policies.install=true" in said["message"]
    assert stage.condition("taskqueue", "other", "NotEnforced") is None
    policy("deletion")
    said = until(lambda: refused(stage, "delete", "taskqueue", "mail"), timeout=60)
    assert 'queue "mail" has deletionPolicy Refuse; set spec.deletionPolicy to Retain' in said
    assert refused(stage, "delete", "taskqueue", "other") is None
    stage.wait_condition("taskqueue", "mail", "NotEnforced", "False", "Enforced", timeout=90)
    stage.apply(stage.queue("mail"))
    until(lambda: stage.condition("taskqueue", "mail", "NotEnforced") is None)
    stage.kubectl("delete", "taskqueue", "mail")


def test_a_namespace_ends_although_a_queue_of_it_refuses(stage, operator, policy):
    """It could never end otherwise; the tasks stay."""
    policy("deletion")
    stage.apply(stage.db(), stage.queue("mail", deletionPolicy="Refuse"))
    stage.wait_condition("taskqueue", "mail", "SignalFresh", "True")
    stage.submit("mail", 2)
    until(lambda: refused(stage, "delete", "taskqueue", "mail"), timeout=60)
    stage.kubectl("delete", "namespace", stage.namespace, "--wait=false")
    until(lambda: not stage.kubectl("get", "namespace", stage.namespace, "--ignore-not-found").strip(), timeout=120)
    assert remains(stage, "mail")["ready"] == 2


def orphan(stage, cluster="another-cluster", uid="its-uid"):
    """The queue belongs to somebody else, and has tasks."""
    applied = stage.run(calls.apply_policy(cluster, uid, stage.namespace, "mail", PLAIN, who="the other"))
    assert applied.code is None
    stage.submit("mail", 3)


def test_adoption_is_asked_for_by_naming_the_owner_as_the_condition_does(stage, operator):
    """The condition's own words, done; a wish that names nobody, or somebody else, changes nothing."""
    orphan(stage)
    stage.apply(stage.db(), stage.queue("mail"))
    said = stage.wait_condition("taskqueue", "mail", "Stalled", "True", "Orphaned")["message"]
    for wish in ("true", "another-cluster", "somebody/else"):
        stage.kubectl("annotate", "--overwrite", "taskqueue", "mail", f"poolkeeper.dev/adopt={wish}")
        until(lambda: stage.get("taskqueue", "mail")["metadata"]["annotations"]["poolkeeper.dev/adopt"])
        stage.wait_condition("taskqueue", "mail", "Stalled", "True", "Orphaned")
    (wish,) = re.findall(r"annotate this TaskQueue with (\S+)", said)
    stage.kubectl(*shlex.split(f"annotate --overwrite taskqueue mail {wish}"))
    stage.wait_condition("taskqueue", "mail", "Ready", "True", "PolicyApplied")
    assert remains(stage, "mail")["ready"] == 3
    assert [event["message"] for event in stage.events("Inherited")] == [
        "found the tasks of this name that were there before: ready 3"
    ]


def test_a_queue_that_another_cluster_has_adopted_says_so_and_does_not_take_it_back(stage, operator):
    """Both carry the wish of old for ever; the last one that named the present owner has it."""
    orphan(stage)
    queue = stage.queue("mail")
    queue["metadata"]["annotations"] = {"poolkeeper.dev/adopt": "another-cluster/its-uid"}
    stage.apply(stage.db(), queue)
    stage.wait_condition("taskqueue", "mail", "Ready", "True")
    ours = stage.run(calls.apply_policy("third", "x", stage.namespace, "mail", PLAIN, who="c")).owner
    assert stage.run(calls.apply_policy("third", "x", stage.namespace, "mail", PLAIN, who="c", adopt=ours)).code is None
    said = stage.wait_condition("taskqueue", "mail", "Stalled", "True", "Orphaned", timeout=60)["message"]
    assert "poolkeeper.dev/adopt=third/x" in said
    stage.kubectl("annotate", "taskqueue", "mail", "example.com/poke=1")
    stage.wait_condition("taskqueue", "mail", "Stalled", "True", "Orphaned")
    again = stage.run(calls.apply_policy("third", "x", stage.namespace, "mail", PLAIN, who="c"))
    assert (again.code, again.changed) == (None, False)


def test_who_may_adopt_is_the_charts_to_say(stage, policy):
    """Somebody who may do everything with TaskQueues may not adopt, until a role has the verb "adopt"."""
    policy("adoption")
    kubectl = stage.kubectl
    kubectl("create", "role", "team", "--verb=*", "--resource=databases.poolkeeper.dev")
    kubectl(
        "create", "role", "queues", "--verb=get,list,create,update,patch,delete", "--resource=taskqueues.poolkeeper.dev"
    )
    kubectl("create", "rolebinding", "queues", "--role=queues", "--user=ann")
    stage.apply(stage.queue("mail"))
    wish = ("annotate", "--overwrite", "taskqueue", "mail", "poolkeeper.dev/adopt=a/b", "--as=ann")
    said = until(lambda: refused(stage, *wish), timeout=60)
    assert 'you may not adopt tasks (annotation poolkeeper.dev/adopt); ask somebody who has the verb "adopt"' in said
    assert refused(stage, "annotate", "taskqueue", "mail", "example.com/note=x", "--as=ann") is None
    kubectl("create", "role", "adopt", "--verb=adopt", "--resource=taskqueues.poolkeeper.dev")
    kubectl("create", "rolebinding", "adopt", "--role=adopt", "--user=ann")
    until(lambda: refused(stage, *wish) is None)
    kubectl(*wish)
    kubectl("delete", "rolebinding", "adopt")
    until(lambda: refused(stage, *(*wish[:4], "poolkeeper.dev/adopt=c/d", "--as=ann")))
    kubectl("annotate", "taskqueue", "mail", "example.com/note=x", "--as=ann")  # one who was allowed wrote the wish
    kubectl("annotate", "taskqueue", "mail", "poolkeeper.dev/adopt-", "--as=ann")
