"""The models of the custom resources and the definitions made from them: structural, bounded, explained, committed."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from poolkeeper.policy import QueuePolicy
from poolkeeper_operator.resources import KINDS, DatabaseSpec, ResourceError, TaskQueueSpec, WorkerPoolSpec, read_spec
from poolkeeper_operator.resources.cli import crds, rendered
from poolkeeper_operator.resources.schema import crd

ROOT = Path(__file__).resolve().parents[2]
POOL = {"queues": [{"name": "q"}], "app": "m:app", "template": {"image": "i"}}
ALLOWED = {
    "type", "description", "properties", "required", "items", "additionalProperties", "enum", "pattern", "format",
    "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
    "x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
}  # fmt: skip


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema below this one with its path, itself included."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


EVERY = [
    pytest.param(node, id=f"{kind.name}{path}")
    for kind in KINDS
    for part in ("spec", "status")
    for path, node in nodes(
        crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part], f".{part}"
    )
]


@pytest.mark.parametrize("name", sorted(rendered()))
def test_a_definition_fits_into_the_annotation_of_a_plain_apply(name):
    assert len(rendered()[name].encode()) < 100_000


@pytest.mark.parametrize("node", EVERY)
def test_schemas_are_structural_and_bounded(node):
    """CEL costs are accepted only where every list, map and string has a bound."""
    assert set(node) <= ALLOWED
    kind = node.get("type")
    assert kind in {"object", "array", "string", "integer", "boolean"} or node.get("x-kubernetes-int-or-string")
    if kind == "string":
        assert "maxLength" in node or "enum" in node
    if kind == "array":
        assert "maxItems" in node
    if "additionalProperties" in node:
        assert "maxProperties" in node


@pytest.mark.parametrize("node", EVERY)
def test_every_field_is_explained_and_every_rule_says_what_is_wrong(node):
    """For `kubectl explain`, and for who reads a refusal."""
    for name, child in node.get("properties", {}).items():
        assert child.get("description"), name
        assert child["description"].rstrip().endswith((".", "...")), name
    for each in node.get("x-kubernetes-validations", []):
        assert each["message"]


def test_defaults_are_told_in_words_and_not_set():
    """An object keeps saying only what its author said; the operator's defaults may change with its version."""
    text = "".join(rendered().values())
    assert "default:" not in text.replace("default:\n", "")  # the field of that name in spec.priority
    assert "Default: 15s." in text
    assert "Default: 64Ki." in text


def test_the_command_prints_what_apply_takes(tmp_path):
    printed = CliRunner().invoke(crds, [])
    assert [doc["kind"] for doc in yaml.safe_load_all(printed.output)] == ["CustomResourceDefinition"] * 4
    written = CliRunner().invoke(crds, ["--write", str(tmp_path)])
    assert written.output.count("wrote") == 4
    assert not CliRunner().invoke(crds, ["--write", str(tmp_path)]).output


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*/*.yaml")), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_the_examples_are_read_as_they_are_written(path):
    kinds = {kind.name: kind for kind in KINDS}
    for obj in yaml.safe_load_all(path.read_text()):
        if obj and obj.get("apiVersion", "").startswith("poolkeeper.dev/"):
            read_spec(kinds[obj["kind"]].spec, obj)


def test_a_queue_means_the_same_with_and_without_kubernetes():
    spec = {"visibilityTimeout": "30s", "maxDeliveries": 3, "backoff": {"max": "5m"}, "deadLetter": {"owner": "me"}}
    in_kubernetes = TaskQueueSpec.model_validate(spec | {"databaseRef": {"name": "main"}})
    assert in_kubernetes.to_store() == QueuePolicy.model_validate(spec).to_store()


def test_an_unreadable_object_is_named_with_each_fault():
    obj = {
        "kind": "WorkerPool",
        "metadata": {"name": "a", "namespace": "b"},
        "spec": POOL | {"concurency": 3, "app": "x"},
    }
    with pytest.raises(ResourceError) as refused:
        read_spec(WorkerPoolSpec, obj)
    assert str(refused.value).startswith('workerpool "a" in namespace "b": spec.app: ')
    assert "spec.concurency: there is no such field" in str(refused.value)


@pytest.mark.parametrize(
    ("spec", "migrates"),
    [
        ({}, False),
        ({"adminSecretRef": {"name": "s"}}, True),
        ({"adminSecretRef": {"name": "s"}, "migrations": "Auto"}, True),
        ({"adminSecretRef": {"name": "s"}, "migrations": "Manual"}, False),
    ],
)
def test_the_operator_migrates_only_with_the_owners_connection(spec, migrates):
    assert DatabaseSpec.model_validate({"dsnSecretRef": {"name": "s"}} | spec).migrates is migrates


def test_a_pool_hands_its_wishes_to_the_decisions():
    spec = WorkerPoolSpec.model_validate(
        POOL
        | {
            "concurrency": 4,
            "maxRunning": 60,
            "scaling": {
                "mode": "Hold", "min": 1, "max": 9, "targetAge": "45s", "toZeroAfter": "1m",
                "up": {"window": "10s", "maxStepPercent": 300, "maxStepPods": 7},
                "down": {"window": "3m", "maxStepPercent": 30, "maxStepPods": 2},
            },
            "drain": {"minGrace": "20s", "maxGrace": "10m", "headroomPercent": 200, "handBackMargin": "3s", "preStop": "2s"},
            "providers": [
                {"name": "a", "quotaRef": {"name": "q"}, "perTask": {"concurrentCalls": 2}},
                {"name": "b", "quotaRef": {"name": "q", "namespace": "platform"}, "perTask": {"concurrentCalls": 1}},
            ],
        }
    )  # fmt: skip
    policy = spec.scaling_policy(timedelta(seconds=5))
    assert (policy.mode, policy.minimum, policy.maximum, policy.concurrency, policy.max_running) == (
        "Hold",
        1,
        9,
        4,
        60,
    )
    assert (policy.target_age.seconds, policy.to_zero_after.seconds, policy.tick.seconds) == (45, 60, 5)
    assert (policy.up.window.seconds, policy.up.max_step_percent, policy.up.max_step_pods) == (10, 300, 7)
    assert (policy.down.window.seconds, policy.down.max_step_percent, policy.down.max_step_pods) == (180, 30, 2)
    drain = spec.drain.policy()
    assert (drain.minimum.seconds, drain.maximum.seconds, drain.headroom_percent) == (20, 600, 200)
    assert (drain.hand_back_margin.seconds, drain.pre_stop.seconds) == (3, 2)
    assert [(u.provider, u.quota, u.calls_per_task) for u in spec.uses("team-a")] == [
        ("a", "team-a/q", 2),
        ("b", "platform/q", 1),
    ]


def test_growing_has_no_step_and_shrinking_has_one_unless_told():
    policy = WorkerPoolSpec.model_validate(POOL).scaling_policy(timedelta(seconds=5))
    assert (policy.up.max_step_percent, policy.up.max_step_pods) == (None, None)
    assert (policy.down.max_step_percent, policy.down.max_step_pods) == (25, 10)
    one = WorkerPoolSpec.model_validate(POOL | {"scaling": {"down": {"maxStepPods": 1}}})
    assert one.scaling_policy(timedelta(seconds=5)).down.max_step_percent is None


def test_a_slow_tick_does_not_make_readings_stale():
    policy = WorkerPoolSpec.model_validate(POOL).scaling_policy(timedelta(minutes=5))
    assert policy.stale_after > policy.tick
