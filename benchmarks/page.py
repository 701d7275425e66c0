"""docs/comparison.md: what runs of `make bench-store` and `make bench-operator ARGS=KEDA` left behind, as tables and plots. Measures nothing.

`python -m benchmarks.page` writes page and plots anew from store.json and keda.json of benchmarks/results; what stands between the marks is generated.
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.figures import RESULTS

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "comparison.md"
PLOTS = DOCS / "plots"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
BEGIN_KEDA, END_KEDA = "<!-- figures beside KEDA -->", "<!-- end of figures beside KEDA -->"
PLOTTED = ("F1", "F2", "F3")
Figures = list[dict[str, Any]]


def sides(figures: Figures) -> dict[str, dict[str, Any]]:
    """What was measured on each side, by what was measured: unit -> side -> spread."""
    found: dict[str, dict[str, Any]] = {}
    for figure in figures:
        measured = {
            name: each for name, each in figure["detail"].items() if isinstance(each, dict) and "median" in each
        }
        if "poolkeeper" in measured:
            found.setdefault(f"{figure['id']}: {figure['unit']}", measured)
    return found


def tables(result: dict[str, Any]) -> str:
    """The generated part of the page."""
    about, figures = result["about"], result["figures"]
    lines = [
        f"`{about['command']}`, commit {about['commit'][:10]}, {about['at'][:10]}, {about['machine']}, Python {about['python']}.",
        "",
        "| figure | what | got | must | reach | reached |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for f in figures:
        judged = ("yes" if f["ok"] else "**no**") if f["work"][:1] in "<>=e" else ""
        lines.append(f"| {f['id']} | {f['unit']} | {f['got']} | {f['work']} | {f['reach']} | {judged} |")
    lines += [
        "",
        "## Each side",
        "",
        "Median, with the least and the most of the rounds. F1 and F2 in tasks a second, F3 in milliseconds.",
        "",
    ]
    for unit, measured in sides(figures).items():
        lines += [f"### {unit}", "", "| side | median | least | most | rounds |", "| --- | --- | --- | --- | --- |"]
        order = sorted(measured.items(), key=lambda each: each[1]["median"], reverse=not unit.startswith("F3"))
        lines += [f"| {name} | {s['median']:,} | {s['least']:,} | {s['most']:,} | {s['rounds']} |" for name, s in order]
        if unit.startswith(PLOTTED):
            lines += ["", f"![{unit}](plots/{_name(unit)}.svg)"]
        lines.append("")
    lines += ["## Versions and settings of the peers", "", "| peer | version | settings |", "| --- | --- | --- |"]
    for name, peer in about["peers"].items():
        lines.append(f"| {name} | {peer['version']} | `{json.dumps(peer['settings'])}` |")
    return "\n".join(lines)


def keda_tables(result: dict[str, Any]) -> str:
    """The generated part about KEDA: a table for each figure, a row for each side."""
    about = result["about"]
    lines = [
        f"`{about['command']}`, commit {about['commit'][:10]}, {about['at'][:10]}, {about['machine']}, Python {about['python']}.",
        "",
        "| figure | what | got | must | reached |",
        "| --- | --- | --- | --- | --- |",
    ]
    for f in result["figures"]:
        judged = ("yes" if f["ok"] else "**no**") if f["work"][:1] in "<>=e" else ""
        lines.append(f"| {f['id']} | {f['unit']} | {f['got']} | {f['work']} | {judged} |")
    for f in result["figures"]:
        columns = {key: None for side in f["detail"].values() for key in side}  # in their order, each once
        lines += ["", f"### {f['id']}: {f['unit']}", ""]
        lines += [f"| side | {' | '.join(map(_column, columns))} |", f"| --- |{' --- |' * len(columns)}"]
        lines += [
            f"| {side} | {' | '.join(_cell(measured.get(key)) for key in columns)} |"
            for side, measured in sorted(f["detail"].items(), key=lambda each: each[0] != "poolkeeper")
        ]
    for name, peer in about["peers"].items():
        lines += ["", f"### Settings of {name} {peer['version']}", "", "| what | settings |", "| --- | --- |"]
        lines += [f"| {what} | `{json.dumps(each, ensure_ascii=False)}` |" for what, each in peer["settings"].items()]
    return "\n".join(lines)


def _column(key: str) -> str:
    units = {"median": "median, s", "least": "least, s", "most": "most, s"}
    return units.get(key, key.replace("_per_second", "/s").replace("_", " "))


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} {kind}" for kind, count in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else f"{value:,}"


def plot(unit: str, measured: dict[str, Any]) -> None:
    """One plot: a bar for each side, from the least to the most a line."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "poolkeeper"  # the same figures make the same file
    from matplotlib import pyplot as plt

    order = sorted(measured.items(), key=lambda each: each[1]["median"], reverse=unit.startswith("F3"))
    figure, axes = plt.subplots(figsize=(7, 0.4 * len(order) + 0.9), layout="constrained")
    middle = [each["median"] for _, each in order]
    spread = [
        [each["median"] - each["least"] for _, each in order],
        [each["most"] - each["median"] for _, each in order],
    ]
    colors = ["#1f6feb" if name == "poolkeeper" else "#9aa4b2" for name, _ in order]
    axes.barh([name for name, _ in order], middle, xerr=spread, color=colors, ecolor="#57606a", capsize=2)
    axes.set_title(unit, fontsize=9)
    axes.set_xlabel("milliseconds" if unit.startswith("F3") else "tasks a second", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    PLOTS.mkdir(exist_ok=True)
    figure.savefig(PLOTS / f"{_name(unit)}.svg", metadata={"Date": None})
    plt.close(figure)


def _name(unit: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in unit.lower()).split())


def written(page: str, made: str, begin: str = BEGIN, end: str = END) -> str:
    """The page with one of its generated parts made anew."""
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{made}\n{end}{after}"


def main() -> None:
    """Write page and plots."""
    result = json.loads((RESULTS / "store.json").read_text())
    PAGE.write_text(written(PAGE.read_text(), tables(result)))
    keda = json.loads((RESULTS / "keda.json").read_text())
    PAGE.write_text(written(PAGE.read_text(), keda_tables(keda), BEGIN_KEDA, END_KEDA))
    for unit, measured in sides(result["figures"]).items():
        if unit.startswith(PLOTTED):
            plot(unit, measured)


if __name__ == "__main__":
    main()
