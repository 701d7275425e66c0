"""The definitions on a real API server: plain apply, explain, columns, scale (operator.md 1, O3)."""

import re
from pathlib import Path

import pytest
import yaml

from fixtures.nonsense import GOOD, manifest
from lab.errors import LabError
from lab.kubectl import Kubectl
from poolkeeper_operator.resources import KINDS
from poolkeeper_operator.resources.schema import crd

ROOT = Path(__file__).resolve().parents[2]
CRDS = sorted((ROOT / "crds").glob("*.yaml"))
NOW = "2026-11-29T16:00:00Z"
CONDITIONS = [
    {
        "type": kind,
        "status": "True",
        "reason": "R",
        "message": f"{kind} message",
        "observedGeneration": 1,
        "lastTransitionTime": NOW,
    }
    for kind in ("Ready", "ScalingActive")
]
STATUS = {
    "Database": {
        "observedGeneration": 1, "trouble": "None", "instanceID": "0192f0c4-7b1e-7c55-9a2f-5d9a3c1e7b10", "serverVersion": "18.1",
        "schemaVersion": 7, "secretVersion": "48213", "conditions": CONDITIONS,
    },
    "TaskQueue": {
        "observedGeneration": 1, "policyVersion": 3, "trouble": "WorkersDying", "oldestRunnableAge": "15s", "leaseExpiries": 4,
        "depth": {"ready": 12, "scheduled": 3, "leased": 1, "running": 8, "waiting": 40,
        "heldBack": {"isolation": 2, "noCapableWorker": 3}},
        "deadLetters": {"total": 2, "growthPerMinute": 1}, "conditions": CONDITIONS,
    },
    "WorkerPool": {
        "observedGeneration": 1, "selector": "poolkeeper.dev/pool=thing", "replicas": 6, "readyReplicas": 5, "busySlots": 21,
        "mode": "Auto", "wanted": {"replicas": 9, "limited": 7, "limitedBy": "ProviderQuota", "applied": 6, "rateLimitedBy": "None"},
        "decisions": [{"time": NOW, "wanted": 9, "limited": 7, "goal": 6, "applied": 6, "reason": "Age", "sentence": "s"}],
        "grace": {"applied": "90s", "needed": "84s", "samples": 41, "censored": 0, "reason": "Measured"},
        "conditions": CONDITIONS,
    },
    "ProviderQuota": {
        "observedGeneration": 1, "effective": {"concurrentCalls": 20, "reason": "r"}, "used": {"concurrentCalls": 18},
        "pools": [{"namespace": "team-a", "name": "agents", "share": {"concurrentCalls": 20}}], "conditions": CONDITIONS,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def kubectl(control_plane, crds):
    return Kubectl(control_plane.kubeconfig)


@pytest.fixture(scope="module")
def here(kubectl):
    """A namespace with one object of each kind whose status is written in full."""
    kubectl("create", "namespace", "crds-apply")
    here = kubectl.within("crds-apply")
    specs = GOOD | {
        "WorkerPool": GOOD["WorkerPool"] | {"replicas": 4},
        "ProviderQuota": GOOD["ProviderQuota"] | {"suspended": True},
    }
    # What a user writes into status is not theirs to write; the next call writes it as the operator does.
    here.apply(*(manifest(kind, spec) | {"status": {"observedGeneration": 99}} for kind, spec in specs.items()))
    for kind in KINDS:
        assert "status" not in here.get(kind.name, "thing")
        _write_status(here, kind, STATUS[kind.name])
    yield here
    kubectl("delete", "namespace", "crds-apply", "--wait=false")


@pytest.mark.parametrize("path", CRDS, ids=lambda p: p.stem)
def test_a_plain_apply_is_accepted_and_changes_nothing_the_second_time(kubectl, crds, path):
    kubectl("apply", "-f", path)
    assert "unchanged" in kubectl("apply", "-f", path)


@pytest.mark.parametrize("path", CRDS, ids=lambda p: p.stem)
def test_the_server_finds_nothing_to_remark(kubectl, crds, path):
    """Structural, names accepted, established."""
    found = kubectl.get("crd", yaml.safe_load(path.read_text())["metadata"]["name"])
    conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}


def _fields(schema, path=""):
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from _fields(child.get("items", child), f"{path}.{name}")


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_kubectl_explains_every_field(kubectl, crds, kind):
    root = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    text = kubectl("explain", kind.plural, "--recursive")
    spec = kubectl("explain", f"{kind.plural}.spec")
    for field in _fields(root):
        assert re.search(rf"^\s+{re.escape(field.rpartition('.')[2])}\t", text, re.MULTILINE), field
    for name, child in root["properties"]["spec"]["properties"].items():
        assert " ".join(child["description"].split())[:60] in " ".join(spec.split()), name


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_every_printer_column_resolves_on_a_live_object(here, kind):
    """A column that points at nothing prints <none>, or leaves a gap, for ever."""
    head, row = here("get", kind.plural, "thing", "-o", "wide").splitlines()
    names = [c.name.upper() for c in kind.columns]
    assert [h for h in re.split(r"\s{2,}", head.strip()) if h != "NAME"] == names
    cells = re.split(r"\s{2,}", row.strip())
    assert len(cells) == len(names) + 1
    assert "<none>" not in cells


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_the_status_is_stored_whole(here, kind):
    """Nothing that the operator writes is pruned (O32), and nothing that a user wrote into it counts."""
    assert here.get(kind.name, "thing")["status"] == STATUS[kind.name]


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_the_model_of_the_status_writes_what_the_server_stores(kind):
    assert kind.status.model_validate(STATUS[kind.name]).as_status() == STATUS[kind.name]


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_conditions_are_a_map_by_type(here, kind):
    with pytest.raises(LabError, match="Duplicate value"):
        _write_status(here, kind, {"conditions": [CONDITIONS[0], CONDITIONS[0]]})


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_the_short_name_and_the_category_answer(here, kind):
    assert "thing" in here("get", kind.short)
    assert f"{kind.name.lower()}.poolkeeper.dev/thing" in here("get", "poolkeeper", "-o", "name")


def test_the_scale_subresource_answers_with_a_selector(here):
    """O3: spec.replicas, status.replicas and the selector are where an autoscaler looks."""
    path = f"/apis/poolkeeper.dev/v1alpha1/namespaces/{here.namespace}/workerpools/thing/scale"
    scale = yaml.safe_load(here("get", "--raw", path))
    assert (scale["spec"]["replicas"], scale["status"]) == (4, {"replicas": 6, "selector": "poolkeeper.dev/pool=thing"})
    here("scale", "workerpool/thing", "--replicas", "7")
    assert here.get("workerpool", "thing")["spec"]["replicas"] == 7


@pytest.mark.parametrize("folder", ["quickstart"])
def test_the_examples_apply_by_hand(here, folder):
    assert here("apply", "-f", ROOT / "examples" / folder).count("created") == 4


def test_kubectl_wait_believes_a_condition_of_the_present_generation_only(here):
    """O3: observedGeneration in each condition keeps a stale True from passing."""
    wait = ("wait", "--for=condition=Ready", "taskqueue/thing")
    assert "condition met" in here(*wait, "--timeout=10s")
    here.apply(manifest("TaskQueue", GOOD["TaskQueue"] | {"maxDeliveries": 4}))
    assert "timed out" in here(*wait, "--timeout=1s", check=False)


def _write_status(here, kind, status):
    body = yaml.safe_dump({"status": status})
    here("patch", kind.plural, "thing", "--subresource=status", "--type=merge", "--patch", body)
