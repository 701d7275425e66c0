"""Contract 2 and 16: one program, lazy verbs, exit codes, one line per error."""

import subprocess
import sys
from pathlib import Path

import pytest

from poolkeeper.cli import OURS, run


@pytest.fixture(autouse=True)
def _no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POOLKEEPER_DSN", "POOLKEEPER_DSN_FILE"):
        monkeypatch.delenv(name, raising=False)


def test_help_names_every_verb_without_importing_any(capsys: pytest.CaptureFixture[str]) -> None:
    """Contract 16: those of the operator too."""
    assert run(["--help"]) == 0
    said = capsys.readouterr().out
    for verb in (*OURS, "operator", "pool", "crds"):
        assert f"  {verb} " in said
    assert "says more" not in said


@pytest.mark.parametrize("verb", list(OURS))
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Contract 16."""
    assert run([verb, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: poolkeeper {verb}")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["submit", "q", "t.x", "{}"], "dsn_missing"),
        (["submit", "q", "t.x", "{}", "--dsn", "nonsense"], "dsn_invalid"),
        (["dlq", "list"], "dsn_missing"),
        (["worker", "x:app", "--queue", "q"], "dsn_missing"),
        (["worker", "x:app"], "setting_invalid"),
    ],
)
def test_an_error_of_ours_is_one_line_with_its_code(
    arguments: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract 2: exit code 2 for configuration, no traceback."""
    assert run(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {code}: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["submit", "q", "t.x", "no json"],
        ["submit", "q", "t.x", "{}", "--delay", "soon"],
        ["task", "show", "no-uuid"],
        ["task", "cancel", "01a22861-70de-79ba-acfa-13b3cdac6ae6"],
        ["dlq", "discard", "--why", "x"],
        ["dlq", "discard", "--queue", "q"],
        ["dlq", "requeue", "01a22861-70de-79ba-acfa-13b3cdac6ae6"],
        ["dlq", "requeue", "01a22861-70de-79ba-acfa-13b3cdac6ae6", "--queue", "q", "--why", "x"],
        ["dlq", "requeue", "01a22861-70de-79ba-acfa-13b3cdac6ae6", "--dry-run", "--why", "x"],
        ["dlq", "requeue", "--type", "a.b", "--why", "x"],
        ["dlq", "requeue", "--queue", "q", "--version", "3", "--why", "x"],
        ["dlq", "requeue", "--queue", "q", "--before", "soon", "--why", "x"],
        ["migrate"],
        ["nonsense"],
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Contract 2: who cancels or discards says why."""
    assert run(arguments) == 2
    assert "Error: " in capsys.readouterr().err


def test_an_unreachable_database_exits_with_5(capsys: pytest.CaptureFixture[str]) -> None:
    """Contract 2."""
    assert run(["queue", "list", "--dsn", "postgresql://x:hunter2@127.0.0.1:1/x"]) == 5
    said = capsys.readouterr().err
    assert said.startswith("error: database_unreachable: ")
    assert "hunter2" not in said


def test_a_kubeconfig_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Contract 2: the Kubernetes client's own warning does not stand before it."""
    assert run(["pool", "explain", "mail", "--kubeconfig", str(tmp_path / "nowhere")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        f"error: setting_invalid: kubeconfig {tmp_path}/nowhere cannot be used: there is no such file"
    )
    assert said.count("\n") == 1


def test_submitting_imports_neither_worker_loop_nor_operator() -> None:
    """Contract 16: `poolkeeper submit` is quick and works without the operator's extra."""
    program = (
        "import sys; from poolkeeper.cli import run; run(['submit', 'q', 't', '{}', '--dsn', 'host=127.0.0.1 port=1']);"
        "print([m for m in sys.modules if m.startswith(('poolkeeper.worker.loop', 'poolkeeper_operator', 'kopf', 'kubernetes', 'prometheus'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
