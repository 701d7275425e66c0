"""Rules of the house that no linter checks (quality §1 and §2)."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 400
SQL = re.compile(
    r"\s*(SELECT\s.*\sFROM\s|SELECT\s+[\w.]+\(|INSERT\s+INTO\s|UPDATE\s+[\w.]+\s+SET\s|DELETE\s+FROM\s|WITH\s+\w+\s+AS\s*\("
    r"|(CREATE|ALTER|DROP)\s+(TABLE|ROLE|SCHEMA|INDEX|FUNCTION|VIEW)\s|GRANT\s)",
    re.IGNORECASE | re.DOTALL,
)
REGISTRY = re.compile(r"https?://[^\s\"'`)]*(pypi|pythonhosted|golang|npmjs|maven|crates|debian|artifact|mirror)")
MACHINE_PATH = re.compile(r"/wor[k]/(main|shared)|/roo[t]/|/home/(?!\$|user/)[a-z]")
VAGUE = {"utils", "util", "helpers", "common", "manager", "base", "misc"}


def tracked() -> list[Path]:
    """What is or would be committed, without the files that git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = (ROOT / name for name in listed.stdout.decode().split("\0") if name)
    return [path for path in paths if path.is_file()]


def python(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def texts(tree: ast.Module) -> Iterator[str]:
    """The string literals that are not documentation."""
    documented = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value


def test_the_folder_of_the_operator_is_no_package() -> None:
    """With an __init__.py it would shadow the standard library's module of that name."""
    assert not (ROOT / "operator" / "__init__.py").exists()


@pytest.mark.parametrize(
    "text", ["select a from b", "SELECT poolkeeper.turn(%s)", "\n  DELETE FROM lease ", "GRANT x TO y"]
)
def test_sql_in_a_literal_would_be_seen(text: str) -> None:
    assert SQL.match(text)


def test_sql_lives_in_sql_files_only() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {text[:60]!r}"
        for path in python("worker", "operator")
        for text in texts(ast.parse(path.read_text()))
        if SQL.match(text)
    ]
    assert found == []


def test_no_module_is_longer_than_a_reader_takes() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in python("worker", "operator", "tools", "tests")}
    assert [f"{path.relative_to(ROOT)}: {n} lines" for path, n in lengths.items() if n > LONGEST] == []


def test_modules_are_named_after_what_they_are_about() -> None:
    assert [path for path in python("worker", "operator", "tools") if path.stem in VAGUE] == []


def test_modules_say_what_they_are_for() -> None:
    """Every module of the product begins with a docstring, of at most eight lines."""
    wrong = []
    for path in python("worker", "operator", "tools"):
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        if path.read_text().strip() and not 0 < len(said.splitlines()) <= 8:
            wrong.append(f"{path.relative_to(ROOT)}: {len(said.splitlines())} lines of docstring")
    assert wrong == []


@pytest.mark.parametrize("pattern", [REGISTRY, MACHINE_PATH], ids=["package registries", "paths of one machine"])
def test_nothing_committed_names(pattern: re.Pattern[str]) -> None:
    found = []
    for path in tracked():
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}:{number}" for number, line in enumerate(lines, 1) if pattern.search(line)]
    assert found == []
