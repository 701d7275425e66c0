"""What the benchmark beside KEDA reads from the API server's log, and what it asks of KEDA (F20, F21)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from benchmarks.ladder import Setting, Step, climb, first, pods_made, steps
from benchmarks.page import keda_tables, written

from lab import build
from lab.audit import Write
from lab.keda import API, objects

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def write(seconds: float, body: Any, *, verb: str = "patch", resource: str = "deployments", name: str = "one") -> Write:
    return Write(verb, resource, "apps", "here", name, "somebody", "", 200, at(seconds), body)


def sized(seconds: float, replicas: int, resource: str = "deployments/scale", name: str = "one") -> Write:
    return write(seconds, {"spec": {"replicas": replicas}}, resource=resource, name=name)


def test_steps_are_sizes_that_were_not_there_before_whoever_writes_them() -> None:
    found = [
        sized(1, 0, "deployments"),
        sized(2, 1),
        sized(3, 1),  # again
        sized(4, 7, name="two"),
        write(5, {"metadata": {"annotations": {"a": "b"}}}),
        write(6, {"spec": {"template": {}}}),
        write(7, None, verb="delete"),
        write(8, {"spec": {"replicas": 9}}, resource="replicasets"),
        sized(9, 4, "deployments"),
        write(10, {"spec": {}}, resource="deployments/scale"),  # Scale has no field for zero
    ]
    assert steps(found, "one") == [Step(at(2), 1), Step(at(9), 4), Step(at(10), 0)]
    assert steps(found, "one", start=1)[0] == Step(at(1), 0)


def test_times_run_from_the_moment_of_the_insert_and_what_was_before_it_does_not_count() -> None:
    sizes = [Step(at(1), 1), Step(at(5), 0), Step(at(11), 1), Step(at(26), 4), Step(at(41), 100), Step(at(56), 100)]
    assert first(sizes, at(10)) == 1.0
    assert first(sizes, at(10), above=1) == 16.0
    assert first(sizes, at(60)) is None
    assert climb(sizes, at(10), 100) == (31.0, [1, 4, 100])
    assert climb(sizes, at(10), 101) is None


def test_pods_are_told_by_the_label_of_their_deployment() -> None:
    pod = {"metadata": {"labels": {"app": "one"}}}
    found = [write(1, pod, verb="create", resource="pods"), write(2, pod, resource="pods"), write(3, None, verb="create", resource="pods")]  # fmt: skip
    assert pods_made(found, "app", "one") == [at(1)]
    assert pods_made(found, "app", "two") == []


@pytest.mark.parametrize(
    ("setting", "name"),
    [(Setting(1), "KEDA, poll 1 s"), (Setting(30, opened=True), "KEDA, poll 30 s, scale-up opened")],
)
def test_a_setting_is_named_by_what_it_changes_and_asks_for_no_more(setting: Setting, name: str) -> None:
    """What a setting does not name stays at KEDA's and the HPA's defaults."""
    assert setting.name == name
    deployment, scaled = setting.objects("q1", {"host": "127.0.0.1"}, {"containers": []})
    assert deployment["spec"]["replicas"] == 0
    assert scaled["spec"]["pollingInterval"] == setting.poll
    assert ("advanced" in scaled["spec"]) == setting.opened
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"]["query"] == setting.told()["query"].replace("…", "q1")
    assert trigger["metadata"]["targetQueryValue"] == str(setting.told()["targetQueryValue"])
    assert "cooldownPeriod" not in scaled["spec"]


def test_the_metrics_api_points_to_the_adapters_port_and_trusts_its_authority_only() -> None:
    made = {each["kind"]: each for each in objects(4711, b"pem")}
    spec = made["APIService"]["spec"]
    assert spec["service"]["port"] == 4711
    assert "insecureSkipTLSVerify" not in spec
    assert f"{spec['version']}.{spec['group']}" == API
    assert made["Service"]["spec"]["externalName"] == "localhost"


def test_kedas_pin_is_the_version_that_is_built_and_no_test_needs_it() -> None:
    pinned = (build.KEDA.folder / "go.mod").read_text()
    assert f"{build.KEDA.source} {build.KEDA.ldflags.rpartition('=')[2]}\n" in pinned
    assert build.KEDA not in build.MODULES


def test_a_generated_part_of_the_page_leaves_the_rest_alone() -> None:
    result = {
        "about": {"command": "c", "commit": "0123456789ab", "at": "2026-01-01T00", "machine": "m", "python": "3", "peers": {"KEDA": {"version": "1", "settings": {"a": {"b": 1}}}}},
        "figures": [{"id": "F21", "unit": "u", "got": "1 write", "work": "= 1 write", "ok": True, "detail": {"poolkeeper": {"median": 0.5, "sizes": [100]}, "KEDA": {"median": 80.0, "writes": 7}}}],
    }  # fmt: skip
    made = keda_tables(result)
    assert "| poolkeeper | 0.5 | 100 |  |" in made
    assert "| KEDA | 80.0 |  | 7 |" in made
    page = "a\n<!-- x -->\nold\n<!-- y -->\nb\n"
    assert written(page, "new", "<!-- x -->", "<!-- y -->") == "a\n<!-- x -->\nnew\n<!-- y -->\nb\n"
