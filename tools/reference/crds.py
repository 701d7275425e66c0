"""docs/reference/crds.md: the fields of the four resources, from the same schemas as the CustomResourceDefinitions."""

from collections.abc import Iterator
from typing import Any

from poolkeeper_operator.resources.kinds import GROUP, KINDS, VERSION, Kind
from poolkeeper_operator.resources.schema import crd
from reference.markdown import code, table

Schema = dict[str, Any]


def page() -> str:
    """The page."""
    parts = [
        "# Resources\n",
        f"API group `{GROUP}`, version `{VERSION}`; all four kinds are namespaced. `kubectl explain` says the same. What is wrong is",
        "refused when it is applied, with a sentence that says what to do. Durations are written `30s`, `5m`, `1h`; sizes `64Ki`.\n",
    ]
    for kind in KINDS:
        parts += _kind(kind)
    return "\n".join(parts)


def _kind(kind: Kind) -> list[str]:
    version = crd(kind)["spec"]["versions"][0]
    root = version["schema"]["openAPIV3Schema"]
    spec, status = (root["properties"][part] for part in ("spec", "status"))
    rules = [line for where, node in _nodes("spec", spec) for line in _rules(where, node)]
    parts = [
        f"## {kind.name}\n",
        f"{kind.description} Short name `{kind.short}`, name of at most {kind.name_length} characters.\n",
        f"### {kind.name} spec\n",
        table(("field", "type", "meaning"), (_row(*one) for one in _fields("", spec))),
        "",
    ]
    if rules:
        parts += ["Rules:\n", *rules, ""]
    parts += [
        f"### {kind.name} status\n",
        table(
            ("field", "type", "meaning"),
            (_row(*one) for one in _fields("", status) if not one[0].startswith("conditions[]")),
        ),
        "",
        f"Columns of `kubectl get {kind.plural}` (those in brackets with `-o wide`): "
        + ", ".join(f"[{column.name}]" if column.wide else column.name for column in kind.columns)
        + ".\n",
    ]
    return parts


def _fields(path: str, node: Schema) -> Iterator[tuple[str, Schema, bool]]:
    """Every field below a node with its path: nested ones by dots, items of lists by `[]`."""
    needed = node.get("required", [])
    for name, child in node.get("properties", {}).items():
        where = f"{path}.{name}" if path else name
        yield where, child, name in needed
        yield from _fields(where, child)
        if "items" in child:
            yield from _fields(f"{where}[]", child["items"])


def _nodes(path: str, node: Schema) -> Iterator[tuple[str, Schema]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from _nodes(f"{path}.{name}", child)
    for suffix, part in (("[]", "items"), (".*", "additionalProperties")):
        if isinstance(node.get(part), dict):
            yield from _nodes(path + suffix, node[part])


def _row(where: str, node: Schema, needed: bool) -> tuple[str, str, str]:
    required = " Required." if needed else ""
    return code(where), _type(node), f"{node.get('description', '')}{required}{_bounds(node)}".strip()


def _type(node: Schema) -> str:
    if node.get("x-kubernetes-int-or-string"):
        return "number or text"
    if node.get("type") == "array":
        return f"list of {_type(node['items'])}"
    if "enum" in node:
        return " or ".join(map(str, node["enum"]))
    if isinstance(node.get("additionalProperties"), dict):
        return f"map to {_type(node['additionalProperties'])}"
    kind = str(node.get("type", "object"))
    return {"integer": "number", "string": "text", "boolean": "true or false"}.get(kind, kind)


def _bounds(node: Schema) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None:
        return f" {low} to {high}."
    if low is not None:
        return f" At least {low}."
    return f" At most {high}." if high is not None else ""


def _rules(where: str, node: Schema) -> list[str]:
    return [f"- `{where}`: {rule['message']}." for rule in node.get("x-kubernetes-validations", [])]
