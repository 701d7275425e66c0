"""`poolkeeper pool simulate`: a pool's policy on a trace of one's own, without a cluster."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from poolkeeper.codes import Code
from poolkeeper.errors import Misconfigured
from poolkeeper_operator.resources import ResourceError, WorkerPoolSpec, read_spec
from poolkeeper_operator.simulation import trial


@click.command()
@click.option("--policy", required=True, type=click.Path(dir_okay=False, path_type=Path), help="A WorkerPool as YAML.")
@click.option(
    "--trace",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="A CSV with a line for each task: at, seconds.",
)
@click.option(
    "--start-up",
    type=click.FloatRange(0, 3600),
    default=10.0,
    show_default=True,
    help="Seconds until a new pod takes its first task.",
)
@click.option(
    "--tick",
    type=click.FloatRange(1, 300),
    default=5.0,
    show_default=True,
    help="Seconds between two decisions: the Database's tickInterval.",
)
@click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", show_default=True)
def simulate(policy: Path, trace: Path, start_up: float, tick: float, output: str) -> None:
    """Play a trace against a WorkerPool's scaling: who would have waited, what it would have cost, and why.

    The operator's own decision is used. `at` is seconds or a moment as ISO 8601, `seconds` how long the task runs.
    """
    wanted = _pool(policy).scaling_policy(timedelta(seconds=tick))
    try:
        load = trial.arrivals(_read(trace).splitlines())
    except trial.TraceError as error:
        raise Misconfigured(Code.SETTING_INVALID, f"{trace}: {error}") from error
    outcome, own = trial.play(wanted, load, start_up)
    if output == "text":
        click.echo("\n".join(trial.words(wanted, outcome, own)))
    else:
        changes = [{"at": at, "pods": pods, "sentence": sentence} for at, pods, sentence in own.sentences]
        click.echo(
            json.dumps({**trial.summary(wanted, outcome), "sizes": outcome.sizes, "decisions": changes}, indent=2)
        )


def _pool(file: Path) -> WorkerPoolSpec:
    import yaml

    try:
        found = [
            each
            for each in yaml.safe_load_all(_read(file))
            if isinstance(each, dict) and each.get("kind") == "WorkerPool"
        ]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        text = " ".join(str(error).split())[:500]
        raise Misconfigured(Code.SETTING_INVALID, f"{file}: no YAML: {text}; correct it there") from error
    if len(found) != 1:
        raise Misconfigured(Code.SETTING_INVALID, f"{file}: holds {len(found)} WorkerPools; give a file with one")
    try:
        return read_spec(WorkerPoolSpec, _with_names(found[0]))
    except ResourceError as error:
        raise Misconfigured(Code.SETTING_INVALID, f"{file}: {error}") from error


def _with_names(document: dict[str, Any]) -> dict[str, Any]:
    meta = document.get("metadata")
    named = meta if isinstance(meta, dict) else {}
    spec = document.get("spec")
    return {**document, "metadata": {"namespace": "default", **named}, "spec": spec if isinstance(spec, dict) else {}}


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise Misconfigured(Code.SETTING_INVALID, f"{file}: cannot be read ({error}); give a file of text") from error
