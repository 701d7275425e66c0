"""docs/reference/metrics.md: what worker and operator serve on /metrics, read from where the code declares it."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reference.markdown import code, table

ROOT = Path(__file__).resolve().parents[2]
KINDS = {
    "Gauge": "gauge",
    "GaugeMetricFamily": "gauge",
    "Counter": "counter",
    "CounterMetricFamily": "counter",
    "Histogram": "histogram",
    "HistogramMetricFamily": "histogram",
}
SERVED_BY = {"worker": ROOT / "worker", "operator": ROOT / "operator"}


@dataclass(frozen=True)
class Metric:
    """One metric as it is declared."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def page() -> str:
    """The page."""
    parts = [
        "# Metrics\n",
        "Served on `/metrics` in Prometheus' format: a worker at `POOLKEEPER_HTTP_ADDR`, the operator at `--http-addr`. Labels are bounded:",
        "never a task, tenant or payload.\n",
    ]
    for program, folder in SERVED_BY.items():
        found = sorted(metrics(folder), key=lambda metric: metric.name)
        if not found:
            raise LookupError(f"no metric is declared below {folder.name}/; look for how they are declared now")
        rows = ((code(m.name), m.kind, ", ".join(map(code, m.labels)), m.meaning) for m in found)
        parts += [f"## Of the {program}\n", table(("metric", "kind", "labels", "meaning"), rows), ""]
    return "\n".join(parts)


def metrics(folder: Path) -> Iterator[Metric]:
    """The metrics that the modules below a folder declare."""
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
                yield _metric(node, _constants(tree))


def _metric(call: ast.Call, known: dict[str, tuple[str, ...]]) -> Metric:
    kind = KINDS[call.func.id] if isinstance(call.func, ast.Name) else ""
    name, meaning = (ast.literal_eval(argument) for argument in call.args[:2])
    given = [keyword.value for keyword in call.keywords if keyword.arg in {"labels", "labelnames"}] or call.args[2:3]
    suffix = "_total" if kind == "counter" and not name.endswith("_total") else ""
    return Metric(name + suffix, kind, tuple(label for node in given for label in _labels(node, known)), meaning)


def _labels(node: ast.expr, known: dict[str, tuple[str, ...]]) -> Iterator[str]:
    """The words of a tuple or list, named constants in it included."""
    match node:
        case ast.Constant(value=str(word)):
            yield word
        case ast.Name(id=name):
            yield from known[name]
        case ast.Starred(value=inner):
            yield from _labels(inner, known)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            for item in items:
                yield from _labels(item, known)


def _constants(tree: ast.Module) -> dict[str, tuple[str, ...]]:
    return {
        target.id: tuple(_labels(node.value, {}))
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
