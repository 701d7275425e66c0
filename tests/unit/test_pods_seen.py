"""The cause of a pod that does not start, in one line, as Kubernetes states it (O16)."""

import pytest

from poolkeeper_operator.observe.pods import refused, rolling, seen, stuck, told


def waiting(reason, message="", /, **last):
    container = {
        "name": "worker",
        "image": "localhost/x:1",
        "state": {"waiting": {"reason": reason, "message": message}},
    }
    if last:
        container["lastState"] = {"terminated": last}
    return {"containerStatuses": [container]}


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        ({}, ""),
        (waiting("ContainerCreating"), ""),
        (waiting("PodInitializing"), ""),
        (
            waiting("ImagePullBackOff", 'Back-off pulling image "localhost/x:1"'),
            'ImagePullBackOff: Back-off pulling image "localhost/x:1"',
        ),
        (waiting("ErrImageNeverPull"), "ErrImageNeverPull: localhost/x:1"),
        (
            waiting("CreateContainerConfigError", 'secret "a" not found'),
            'CreateContainerConfigError: secret "a" not found',
        ),
        (waiting("CrashLoopBackOff", exitCode=137, reason="OOMKilled"), "CrashLoopBackOff: exit code 137 (OOMKilled)"),
        (
            waiting("CrashLoopBackOff", exitCode=2, reason="Error", message="Traceback\n  File x\nKeyError: 'MODEL'\n"),
            "CrashLoopBackOff: exit code 2: KeyError: 'MODEL'",
        ),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
                ]
            },
            "Unschedulable: 0/3 nodes",
        ),
        ({"conditions": [{"type": "PodScheduled", "status": "True"}]}, ""),
    ],
)
def test_the_cause_is_one_line(status, cause):
    """Slow is no cause; what Kubernetes calls hopeless is quoted."""
    assert stuck(status) == cause


def test_the_newest_pod_tells_the_cause():
    """During a rollout the pod of the old template still tells of what the new one has mended."""

    def pod(name, created, status):
        return seen({"metadata": {"name": name, "uid": name, "creationTimestamp": created}, "status": status})

    old = pod("b", "2026-01-01T00:00:00Z", waiting("CrashLoopBackOff", exitCode=2, reason="Error", message="no app"))
    new = pod("a", "2026-01-01T00:01:00Z", waiting("CreateContainerConfigError", 'secret "a" not found'))
    assert told([old, new]) == told([new, old]) == 'CreateContainerConfigError: secret "a" not found'
    assert told([]) == ""


def test_a_deployment_that_may_create_no_pods_says_why():
    """An exceeded ResourceQuota shows only on the Deployment."""
    condition = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": "exceeded quota: pods",
    }
    assert refused({"status": {"conditions": [condition]}}) == "FailedCreate: exceeded quota: pods"
    assert refused({"status": {}}) == ""
    assert refused(None) == ""


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"observedGeneration": 3, "replicas": 4, "updatedReplicas": 4}, False),
        ({"observedGeneration": 3, "replicas": 5, "updatedReplicas": 1}, True),
        ({"observedGeneration": 2, "replicas": 4, "updatedReplicas": 4}, True),
        ({"observedGeneration": 3}, False),
    ],
)
def test_a_rollout_is_seen_until_the_last_old_pod_is_gone(status, expected):
    """Also while the controller has not yet seen what was written."""
    assert rolling({"metadata": {"generation": 3}, "status": status}) is expected
