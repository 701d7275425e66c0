"""From a kind's models to its CustomResourceDefinition.

Guarantees: a structural schema (references inlined, no nulls, no titles), defaults in words (they are the operator's, and an object keeps
saying only what its author said), every rule and bound of the models kept. Output depends on the models alone.
"""

from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from poolkeeper.durations import format_duration, format_size
from poolkeeper_operator.resources.kinds import GROUP, VERSION, Kind

Schema = dict[str, Any]
DROPPED = ("title", "default", "additionalProperties", "$defs", "anyOf", "allOf", "$ref")
FIRST, LAST = ("description", "type"), ("properties", "items", "additionalProperties")  # for readers of the file
NAME_RULE = (
    "self.metadata.name.size() <= {length} && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
    "the name must be a DNS label of at most {length} characters (a-z, 0-9 and -, no dots), since names of children are made from it",
)


class _Generator(GenerateJsonSchema):
    """Pydantic's generator, with durations left for the description."""

    def encode_default(self, dft: Any) -> Any:
        return format_duration(dft) if isinstance(dft, timedelta) else super().encode_default(dft)


def crd(kind: Kind) -> Schema:
    """The whole CustomResourceDefinition."""
    length = {"length": kind.name_length}
    root: Schema = {
        "type": "object",
        "description": kind.description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": schema_of(kind.spec),
            "status": schema_of(kind.status),
        },
        "x-kubernetes-validations": [{"rule": NAME_RULE[0].format(**length), "message": NAME_RULE[1].format(**length)}],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.crd_name, "labels": {"app.kubernetes.io/part-of": "poolkeeper"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": [kind.short],
                "categories": ["poolkeeper"],
            },
            "versions": [_version(kind, root)],
        },
    }


def _version(kind: Kind, root: Schema) -> Schema:
    subresources: Schema = {"status": {}}
    if kind.scale:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    columns = [
        {
            "name": c.name,
            "type": c.type,
            "jsonPath": c.path,
            "description": c.description,
            **({"priority": 1} if c.wide else {}),
        }
        for c in kind.columns
    ]
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": root},
        "subresources": subresources,
        "additionalPrinterColumns": columns,
    }


def schema_of(model: type[BaseModel]) -> Schema:
    """The structural schema of one model."""
    raw = model.model_json_schema(by_alias=True, schema_generator=_Generator)
    return _structural(raw, raw.get("$defs", {}))


def _structural(node: Schema, defs: dict[str, Schema]) -> Schema:
    """Inline references and drop what a structural schema must not have; what stands nearer to the field wins."""
    node = _resolved(node, defs)
    out = {key: value for key, value in node.items() if key not in DROPPED}
    if out.pop(
        "properties", None
    ):  # an empty one is dropped by the server, and each apply would differ from what is stored
        out["properties"] = {name: _structural(child, defs) for name, child in node["properties"].items()}
    elif isinstance(node.get("additionalProperties"), dict):
        out["additionalProperties"] = _structural(node["additionalProperties"], defs)
    if "items" in node:
        out["items"] = _structural(node["items"], defs)
    if words := _default_in_words(node):
        out["description"] = f"{out.get('description', '').rstrip()} Default: {words}.".lstrip()
    return {key: out[key] for key in sorted(out, key=lambda key: (key not in FIRST, key in LAST))}


def _resolved(node: Schema, defs: dict[str, Schema]) -> Schema:
    """The node with its reference, or its one alternative to null, in place; rules of both are kept."""
    while True:
        if "$ref" in node:
            target = defs[node["$ref"].rpartition("/")[2]]
        elif "anyOf" in node:
            (target,) = (option for option in node["anyOf"] if option.get("type") != "null")
        else:
            return node
        near = {key: value for key, value in node.items() if key not in {"$ref", "anyOf"}}
        rules = [*target.get("x-kubernetes-validations", []), *near.get("x-kubernetes-validations", [])]
        node = {**target, **near, **({"x-kubernetes-validations": rules} if rules else {})}


def _default_in_words(node: Schema) -> str:
    """A scalar default for the description; the absence of a value is described by its author."""
    default = node.get("default")
    if default is None or default == "" or isinstance(default, (dict, list)):
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    is_size = node.get("type") == "string" and isinstance(default, int)
    return format_size(default) if is_size else str(default)
