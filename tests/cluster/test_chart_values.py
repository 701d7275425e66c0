"""Values of every form and none: refused with their place, or rendered as what they are (A6, C60). Needs helm, no cluster."""

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.test_chart import CHART, Object, container, helm, of_kind

NAMED = "does not match pattern"
ONLY = "additional properties '{}' not allowed"
WANTS = "got {}, want {}"

NONSENSE: list[tuple[str, Any, str]] = [  # the value's place, the value, what is said beside the place
    ("", {"replicas": 3}, ONLY.format("replicas")),
    ("replicaCount", "three", WANTS.format("string", "integer")),
    ("replicaCount", 0, "minimum: got 0, want 1"),
    ("replicaCount", -1, "minimum: got -1, want 1"),
    ("replicaCount", 1.5, WANTS.format("number", "integer")),
    ("replicaCount", 6, "maximum: got 6, want 5"),
    ("replicaCount", True, WANTS.format("boolean", "integer")),
    ("replicaCount", "2", WANTS.format("string", "integer")),
    ("fullnameOverride", "-operator", NAMED),
    ("fullnameOverride", "a" * 57, "maxLength: got 57, want 56"),
    ("fullnameOverride", "{{ .Release.Name }}", NAMED),
    ("image", [], WANTS.format("array", "object")),
    ("image", "operator:1", WANTS.format("string", "object")),
    ("image", {"registry": "x"}, ONLY.format("registry")),
    ("image.repository", "", NAMED),
    ("image.repository", "a/b:1", NAMED),
    ("image.repository", "A", NAMED),
    ("image.repository", 12, WANTS.format("number", "string")),
    ("image.tag", 1.10, WANTS.format("number", "string")),
    ("image.tag", False, WANTS.format("boolean", "string")),
    ("image.tag", 0o777, WANTS.format("number", "string")),
    ("image.tag", "not a tag", NAMED),
    ("image.tag", "{{ .Chart.AppVersion }}", NAMED),
    ("image.digest", "sha256:12", NAMED),
    ("image.pullPolicy", "Sometimes", "value must be one of 'Always', 'IfNotPresent', 'Never'"),
    ("image.pullPolicy", "", "value must be one of 'Always', 'IfNotPresent', 'Never'"),
    ("imagePullSecrets", "mine", WANTS.format("string", "array")),
    ("imagePullSecrets", {}, WANTS.format("object", "array")),
    ("imagePullSecrets/0", [{"name": "mine"}], WANTS.format("object", "string")),
    ("imagePullSecrets/0", [""], NAMED),
    ("watchNamespaces", "team-a", WANTS.format("string", "array")),
    ("watchNamespaces", ["a", "a"], "items at 0 and 1 are equal"),
    ("watchNamespaces/0", ["Team A"], NAMED),
    ("watchNamespaces/0", [123], WANTS.format("number", "string")),
    ("watchNamespaces/0", ["a" * 64], "maxLength: got 64, want 63"),
    ("crds.install", "perhaps", WANTS.format("string", "boolean")),
    ("crds", {"create": True}, ONLY.format("create")),
    ("policies.install", "false", WANTS.format("string", "boolean")),
    ("policies", [], WANTS.format("array", "object")),
    ("rbac.create", 0, WANTS.format("number", "boolean")),
    ("rbac", [], WANTS.format("array", "object")),
    ("rbac.clusterRole", "no", WANTS.format("string", "boolean")),
    ("serviceAccount.name", {"create": False}, "minLength: got 0, want 1"),
    ("serviceAccount.name", "Mine", NAMED),
    ("serviceAccount.annotations", [], WANTS.format("array", "object")),
    ("serviceAccount.annotations/role", {"role": 12}, WANTS.format("number", "string")),
    ("log", "info", WANTS.format("string", "object")),
    ("log", {"levl": "info"}, ONLY.format("levl")),
    ("log.level", "loud", "value must be one of 'debug', 'info', 'warning', 'error'"),
    ("log.format", False, "value must be one of 'json', 'text'"),
    ("resources", [], WANTS.format("array", "object")),
    ("resources", {"request": {}}, ONLY.format("request")),
    ("resources.requests.cpu", "0", NAMED),
    ("resources.requests.cpu", 0, "minimum"),
    ("resources.requests.cpu", "-5m", NAMED),
    ("resources.requests.memory", 512, WANTS.format("number", "string")),
    ("resources.requests.memory", "512", NAMED),
    ("resources.limits", {"disk": "1Gi"}, ONLY.format("disk")),
    ("resources.limits.memory", 1000000, WANTS.format("number", "string")),
    ("podMonitor", {"enabled": True}, ONLY.format("enabled")),
    ("podMonitor.install", "yes", WANTS.format("string", "boolean")),
    ("alerts.runbooks", "wiki/pk", NAMED),
    ("alerts.runbooks", "https://wiki.example.com/", NAMED),
    ("alerts.labels/team", {"team": True}, WANTS.format("boolean", "string")),
    ("dashboard.labels", [], WANTS.format("array", "object")),
    ("podLabels", [], WANTS.format("array", "object")),
    ("podLabels", {"a/b/c": "x"}, ONLY.format("a/b/c")),
    ("podLabels", {"": "x"}, ONLY.format("")),
    ("podLabels/app.kubernetes.io~1name", {"app.kubernetes.io/name": "x"}, "false schema"),
    ("podLabels/team", {"team": "not a label"}, NAMED),
    ("podLabels/team", {"team": True}, WANTS.format("boolean", "string")),
    ("podLabels/team", {"team": "{{ .Release.Name }}"}, NAMED),
    ("podAnnotations/scrape", {"scrape": True}, WANTS.format("boolean", "string")),
    ("podAnnotations", {"a b": "x"}, ONLY.format("a b")),
    ("nodeSelector/ssd", {"ssd": True}, WANTS.format("boolean", "string")),
    ("nodeSelector", [], WANTS.format("array", "object")),
    ("tolerations", {}, WANTS.format("object", "array")),
    ("tolerations/0", [{"kee": "x"}], ONLY.format("kee")),
    ("tolerations/0/tolerationSeconds", [{"tolerationSeconds": "60"}], WANTS.format("string", "integer")),
    ("affinity", [], WANTS.format("array", "object")),
    ("affinity", {"nodeaffinity": {}}, ONLY.format("nodeaffinity")),
    ("priorityClassName", "Very High", NAMED),
    ("priorityClassName", False, WANTS.format("boolean", "string")),
]


def said_of(place: str) -> str:
    key, slash, rest = place.partition("/")
    return f"at '{'/' if place else ''}{key.replace('.', '/')}{slash}{rest}': "


def values_with(place: str, value: Any) -> Object:
    """The value under the part of its place that is joined by dots; for `a/0` or `a.b/key` the value is the whole of it."""
    if not place:
        return dict(value)
    *path, last = place.partition("/")[0].split(".")
    if isinstance(value, dict) and value == {"create": False}:  # what makes the name necessary stands beside it
        *path, last = path
    made: Object = {last: value}
    for key in reversed(path):
        made = {key: made}
    return made


def together(cases: Iterable[tuple[str, Any, str]]) -> list[tuple[Object, list[str]]]:
    """As few values files as can hold all cases, one top-level key once in each, with the lines that each must cause."""
    files: list[tuple[Object, list[str]]] = []
    for place, value, said in cases:
        wanted = values_with(place, value)
        free = next((each for each in files if not set(each[0]) & set(wanted)), None)
        if free is None:
            free = ({}, [])
            files.append(free)
        free[0].update(wanted)
        free[1].append(said_of(place) + ("" if said == NAMED else said))
    return files


def render(tmp_path: Path, values: Object, *flags: str, release: str = "poolkeeper", chart: Path = CHART) -> str:
    """What `helm template` makes of a values file."""
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    status, said = helm("template", release, str(chart), "-n", "pk-system", "-f", str(file), *flags)
    assert status == 0, said
    return said


class AsKubernetes(yaml.SafeLoader):
    """Takes for numbers and truth values what Kubernetes does, more than PyYAML: 123e4 and n."""


AsKubernetes.yaml_implicit_resolvers = {key: [*each] for key, each in yaml.SafeLoader.yaml_implicit_resolvers.items()}
AsKubernetes.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), [*"+-0123456789"]
)
AsKubernetes.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"[yYnN]$"), [*"yYnN"])


def objects_in(text: str) -> list[Object]:
    return [found for found in yaml.load_all(text, AsKubernetes) if found]


def test_nonsense_is_refused_each_with_its_place(tmp_path: Path) -> None:
    """A6, C60: one line for each value that is wrong, with its path and what would be right; all are named at once."""
    quiet = []
    for values, wanted in together(NONSENSE):
        file = tmp_path / "nonsense.json"
        file.write_text(json.dumps(values))
        status, said = helm("lint", "charts/poolkeeper", "-f", str(file))
        assert status != 0
        quiet += [line for line in wanted if line not in said]
    assert quiet == []


@pytest.mark.parametrize("command", ["lint", "template"])
def test_the_command_line_is_checked_like_a_file(command: str) -> None:
    """A6: `--set` makes numbers of digits and `--set-string` makes texts of them; each is refused where the other is wanted."""
    argv = [command, "charts/poolkeeper", "--set", "image.tag=20261129", "--set", "log.levl=info"]
    status, said = helm(*argv, "--set-string", "replicaCount=2")
    assert status != 0
    assert said_of("image.tag") + WANTS.format("number", "string") in said
    assert said_of("replicaCount") + WANTS.format("string", "integer") in said
    assert said_of("log") + ONLY.format("levl") in said


@pytest.mark.parametrize("flag", ["--set", "--set-string"])
@pytest.mark.parametrize("tag", ["123e4", "0777", "no", "1.10"])
def test_a_tag_stays_the_text_that_was_written(tmp_path: Path, flag: str, tag: str) -> None:
    """C60."""
    (found,) = {container(objects_in(render(tmp_path, {}, flag, f"image.tag={tag}")))["image"]}
    assert found == f"localhost/poolkeeper-operator:{tag}"


TEXTS = {"a": "no", "b": "on", "c": "0777", "d": "1.10", "e": "1000000", "f": "123e4", "g": "null", "h": "", "i": "n"}


FOREVER = {"operator": "Exists", "effect": "NoExecute"}
ODD: Object = {
    "fullnameOverride": "0777",
    "image": {"repository": "123", "tag": "1.10"},
    "imagePullSecrets": ["on", "123e4"],
    "watchNamespaces": ["no", "123"],
    "crds": {"install": False},
    "policies": {"install": False},
    "serviceAccount": {"annotations": TEXTS},
    "podLabels": TEXTS,
    "podAnnotations": {**TEXTS, "p": "{{ .Release.Name }}", "q": "- x: [y", "r": "two\nlines: 'x'"},
    "nodeSelector": TEXTS,
    "tolerations": [
        {"key": "no", "tolerationSeconds": 1000000, **FOREVER},
        {"key": "b", "tolerationSeconds": 16777217, **FOREVER},
    ],
    "resources": {"requests": {"cpu": 1000000, "memory": "1.5Gi"}, "limits": {"memory": "2Gi"}},
    "priorityClassName": "no",
}
"""Texts that YAML takes for something else, wherever one may stand; test_chart_install.py tries them on an API server."""


def test_texts_stay_texts_and_numbers_numbers(tmp_path: Path) -> None:
    """C60: whatever YAML would make of them unquoted; templates within values are texts, too."""
    made = objects_in(render(tmp_path, ODD, "-n", "1000000", release="123e4"))
    (deployment,) = of_kind("Deployment", made)
    template = deployment["spec"]["template"]
    pod = template["spec"]
    assert template["metadata"]["annotations"] == ODD["podAnnotations"]
    assert TEXTS.items() <= template["metadata"]["labels"].items()
    assert of_kind("ServiceAccount", made)[0]["metadata"]["annotations"] == TEXTS
    assert (pod["nodeSelector"], pod["tolerations"], pod["priorityClassName"]) == (TEXTS, ODD["tolerations"], "no")
    assert pod["imagePullSecrets"] == [{"name": "on"}, {"name": "123e4"}]
    found = container(made)
    assert found["args"] == ["--namespace=no", "--namespace=123"]
    assert found["image"] == "123:1.10"
    assert found["resources"]["requests"] == {"cpu": 1000000, "memory": "1.5Gi"}
    assert all(isinstance(each.get("value", ""), str) for each in found["env"])
    assert {role["metadata"]["namespace"] for role in of_kind("Role", made)} == {"1000000", "no", "123"}
    for each in made:
        assert_texts(each["metadata"])
        assert_texts(each.get("subjects", {}))
    assert_texts(deployment["spec"]["selector"])


def assert_texts(value: Any) -> None:
    """Names, namespaces, labels and annotations are texts, or the API server takes none of it."""
    if isinstance(value, dict):
        assert all(isinstance(key, str) for key in value), value
        for each in value.values():
            assert_texts(each)
    elif isinstance(value, list):
        for each in value:
            assert_texts(each)
    else:
        assert isinstance(value, str), value


def test_what_is_absent_or_null_is_the_default(tmp_path: Path) -> None:
    """C60: `--reuse-values` brings the values of an earlier chart, which knew fewer keys; null must not break a template."""
    usual = render(tmp_path, {})
    assert render(tmp_path, {}) == usual, "twice the same"
    values: Object = yaml.safe_load((CHART / "values.yaml").read_text())
    assert render(tmp_path, dict.fromkeys(values)) == usual
    maps = [key for key, value in values.items() if isinstance(value, dict) and key != "resources"]
    assert render(tmp_path, {key: dict.fromkeys(values[key]) for key in maps}) == usual
    earlier = tmp_path / "chart" / "poolkeeper"
    shutil.copytree(CHART, earlier)
    (earlier / "values.yaml").write_text("{}\n")
    assert render(tmp_path, {}, chart=earlier) == usual
    assert render(tmp_path, {key: {} for key in maps}, chart=earlier) == usual


LONG = "a" * 40 + "-b-"
RELEASES = [
    ("poolkeeper", "one"),
    ("poolkeeper", "two"),
    ("second", "one"),
    ("7up", "one"),
    ("a", "b-c"),
    ("b-c", "a"),
    (f"{LONG}1234567890", "one"),
    (f"{LONG}123456789x", "one"),
    (f"{LONG}1234567890", "n" * 63),
    (f"{LONG}123456789x", "n" * 63),
    ("a.b", "one"),
]


def test_names_are_short_and_each_release_has_its_own(tmp_path: Path) -> None:
    """C60, O31: releases of one name in two namespaces, two in one, and names that differ only where they are cut."""
    settings = {"crds": {"install": False}, "policies": {"install": False}}
    names: list[tuple[str, str, str]] = []
    for release, namespace in RELEASES:
        made = objects_in(render(tmp_path, settings, "-n", namespace, release=release))
        found = [(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in made]
        assert {place for kind, place, _ in found if not kind.startswith("Cluster")} == {namespace}
        names += found
    assert len(set(names)) == len(names)
    assert [name for *_, name in names if len(name) > 63 or name[-1] in "-." or name[0] in "-."] == []


def test_a_name_of_one_s_own_is_used_as_it_is(tmp_path: Path) -> None:
    """C60: beside a release name that helm refuses by itself from 54 characters on."""
    mine = "b" * 56
    made = objects_in(render(tmp_path, {"fullnameOverride": mine}, release="a" * 53))
    assert of_kind("Deployment", made)[0]["metadata"]["name"] == mine
    assert {role["metadata"]["name"] for role in of_kind("Role", made)} == {f"{mine}-leader"}
    assert max(len(each["metadata"]["name"]) for each in made) <= 63
    status, said = helm("template", "a" * 60, "charts/poolkeeper")
    assert status != 0
    assert "invalid release name" in said


WITHIN = {"crds": {"install": False}, "policies": {"install": False}, "rbac": {"clusterRole": False}}


def test_one_can_install_without_rights_on_the_cluster(tmp_path: Path) -> None:
    """O31, C60: nothing outside of namespaces is made; what the operator then needs from somebody else is one small role."""
    kept = {"watchNamespaces": ["team-a"]}
    made = objects_in(render(tmp_path, {**WITHIN, **kept}))
    assert [each["kind"] for each in made if "namespace" not in each["metadata"]] == []
    whole = objects_in(render(tmp_path, kept))
    assert {each["kind"] for each in whole if "namespace" not in each["metadata"]} == {
        "ClusterRole",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }


def test_the_whole_cluster_is_not_kept_without_a_cluster_role() -> None:
    status, said = helm("lint", "charts/poolkeeper", "--set", "rbac.clusterRole=false")
    assert status != 0
    assert said_of("watchNamespaces") + "minItems: got 0, want 1" in said


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_no_budget_is_in_the_way_of_a_node_s_drain(tmp_path: Path, replicas: int) -> None:
    """C32: of all pods up, at least one may be evicted; of one pod there is no budget."""
    made = objects_in(render(tmp_path, {"replicaCount": replicas}))
    allowed = [each["spec"]["maxUnavailable"] for each in of_kind("PodDisruptionBudget", made)]
    assert allowed == ([1] if replicas > 1 else [])
    assert all(
        each["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow" for each in of_kind("PodDisruptionBudget", made)
    )
