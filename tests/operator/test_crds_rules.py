"""Nonsense is refused at apply by a real API server, with a sentence that says what to do (O4, O8)."""

import re

import pytest
import yaml

from fixtures.nonsense import BY_RULE, BY_SCHEMA, GOOD, changed, manifest
from lab.errors import LabError
from lab.kubectl import Kubectl

# Unknown fields are the client's question to ask (strict validation); they have a test of their own.
ROWS = [*BY_RULE, *(row for row in BY_SCHEMA if not row[3].startswith("unknown field"))]


@pytest.fixture(scope="module")
def here(control_plane, crds):
    kubectl = Kubectl(control_plane.kubeconfig)
    kubectl("create", "namespace", "crds-rules")
    yield kubectl.within("crds-rules")
    kubectl("delete", "namespace", "crds-rules", "--wait=false")


@pytest.fixture(scope="module")
def answers(here):
    """What the server says to each row, by the object's name; one kubectl for all of them."""
    objects = [manifest(kind, changed(kind, path, value), f"row-{i}") for i, (kind, path, value, _) in enumerate(ROWS)]
    objects += [manifest(kind, spec, f"good-{kind.lower()}") for kind, spec in GOOD.items()]
    text = here(
        "create", "--dry-run=server", "--validate=false", "-f", "-", stdin=yaml.safe_dump_all(objects), check=False
    )
    return re.split(r"\n(?=Error from server|The \w+ \")", text)


@pytest.mark.parametrize("kind", sorted(GOOD))
def test_a_good_object_is_accepted(answers, kind):
    assert f"good-{kind.lower()} created" in answers[0]


@pytest.mark.parametrize(("row", "words"), [pytest.param(i, r[3], id=f"{r[0]}-{r[1]}-{i}") for i, r in enumerate(ROWS)])
def test_nonsense_is_refused_in_words(answers, row, words):
    (said,) = [answer for answer in answers[1:] if f'"row-{row}"' in answer]
    assert words in said


def test_a_misspelt_field_is_refused(here):
    """A misspelt limit must not mean "no limit"; kubectl asks for strict validation unless told otherwise."""
    with pytest.raises(LabError, match="maxDelivery"):
        here.apply(manifest("TaskQueue", changed("TaskQueue", "maxDelivery", 3)))


@pytest.mark.parametrize(
    ("kind", "length"), [("Database", 63), ("TaskQueue", 63), ("WorkerPool", 52), ("ProviderQuota", 63)]
)
def test_a_name_that_children_could_not_carry_is_refused_with_its_bound(here, kind, length):
    """O8: no truncation, so no clashes."""
    assert "created" in here.apply(manifest(kind, GOOD[kind], name="a" * length))
    for name in ("a" * (length + 1), "with.dot"):
        with pytest.raises(LabError, match=f"DNS label of at most {length} characters"):
            here.apply(manifest(kind, GOOD[kind], name=name))


def test_a_queue_cannot_move_to_another_database(here):
    here.apply(manifest("TaskQueue", GOOD["TaskQueue"], "moving"))
    with pytest.raises(LabError, match="cannot be changed; delete the object and apply it anew"):
        here.apply(manifest("TaskQueue", changed("TaskQueue", "databaseRef.name", "other"), "moving"))


def test_fields_typed_like_a_pods_pass_through_whole(here):
    template = {
        "image": "localhost/a:1",
        "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        "envFrom": [{"configMapRef": {"name": "c"}, "prefix": "P_"}],
        "volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "s"}}]}}],
        "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True, "subPath": "x"}],
    }
    here.apply(manifest("WorkerPool", GOOD["WorkerPool"] | {"template": template}))
    assert here.get("workerpool", "thing")["spec"]["template"] == template
