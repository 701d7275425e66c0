"""O32: an installed definition that lacks a field of this version is noticed, whatever field it is."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from poolkeeper_operator.resources import KINDS
from poolkeeper_operator.resources.kinds import Kind
from poolkeeper_operator.resources.schema import crd
from poolkeeper_operator.runtime.checks import absent


def schema(kind: Kind) -> dict[str, Any]:
    found: dict[str, Any] = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def parts(of: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any], str]]:
    """Each field that could be pruned: its path, the properties that it stands in, its name."""
    if of.get("x-kubernetes-preserve-unknown-fields"):
        return
    for name, child in of.get("properties", {}).items():
        yield f"{path}{name}", of["properties"], name
        yield from parts(child, f"{path}{name}.")
        if isinstance(child.get("items"), dict):
            yield from parts(child["items"], f"{path}{name}[].")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_field_that_is_missing_is_named(kind: Kind) -> None:
    """Taken away one after the other; a whole part is named once."""
    whole = schema(kind)
    assert list(absent(whole, copy.deepcopy(whole))) == []
    paths = [path for path, _, _ in parts(whole)]
    assert len(paths) > 10
    for path in paths:
        older = copy.deepcopy(whole)
        (properties, name) = next((where, last) for found, where, last in parts(older) if found == path)
        del properties[name]
        assert list(absent(whole, older)) == [path]


def test_a_newer_definition_and_one_that_keeps_everything_are_good() -> None:
    """An upgrade applies definitions first; an older operator goes on with them."""
    whole = schema(KINDS[0])
    newer = copy.deepcopy(whole)
    newer["properties"]["spec"]["properties"]["later"] = {"type": "string"}
    assert list(absent(whole, newer)) == []
    assert list(absent(whole, {"type": "object", "x-kubernetes-preserve-unknown-fields": True})) == []
