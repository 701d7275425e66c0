"""The reference says what the code says: generated pages are up to date, and requirement ids mean something (A12)."""

import re
import subprocess
from pathlib import Path

import pytest

from fixtures.postgres import ROLE_KINDS, Database
from poolkeeper_operator.decide.reasons import GraceReason, LimitedBy, QuotaReason, RateLimitedBy, Want
from reference import pages, sqltext

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"
COMMAND = "PYTHONPATH=tools:worker:operator .venv/bin/python -m reference --write docs/reference"
REQUIREMENT = re.compile(r"\b([QOF][1-9][0-9]?|A[1-9]|A1[0-3]|P10|P[1-9])\b")
LISTED = re.compile(r"^\| ([QOFPA][0-9]+) \|", re.MULTILINE)


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return pages()


@pytest.mark.parametrize("name", ["cli.md", "codes.md", "crds.md", "metrics.md", "settings.md", "sql.md", "testing.md"])
def test_a_generated_page_is_up_to_date(made: dict[str, str], name: str) -> None:
    assert (FOLDER / name).read_text() == made[name], f"docs/reference/{name} is old; run: {COMMAND}"


def test_the_pages_tested_are_the_pages_there_are(made: dict[str, str]) -> None:
    assert {*made, "requirements.md"} == {path.name for path in FOLDER.glob("*.md")}


def test_the_rights_in_the_page_are_the_rights_in_the_database(database: Database) -> None:
    """Q51: EXECUTE is granted as docs/reference/sql.md says, and to nobody else."""
    with database.connect() as conn:
        rows = conn.execute(
            "SELECT p.proname, a.grantee::regrole::text FROM pg_proc AS p, aclexplode(p.proacl) AS a "
            "WHERE p.pronamespace = 'poolkeeper'::regnamespace AND a.privilege_type = 'EXECUTE' AND a.grantee <> p.proowner"
        ).fetchall()
    granted: dict[str, set[str]] = {}
    for function, role in rows:
        granted.setdefault(function, set()).add(role.removeprefix("poolkeeper_"))
    assert set().union(*granted.values()) <= set(ROLE_KINDS)
    assert {name: sorted(roles) for name, roles in granted.items()} == sqltext.grants()


def test_every_requirement_named_in_code_and_tests_is_explained() -> None:
    """An id in a docstring, a test or a page leads to one line of docs/reference/requirements.md."""
    listed = set(LISTED.findall((FOLDER / "requirements.md").read_text()))
    files = subprocess.run(
        ["git", "ls-files", "-z", "worker", "operator", "tests", "docs", "tools", "benchmarks", "README.md"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    named = {
        requirement
        for name in files.split("\0")
        if name.endswith((".py", ".sql", ".md"))
        for requirement in REQUIREMENT.findall((ROOT / name).read_text())
    }
    assert named - listed == set()


ROW = re.compile(r"^\| ([QOPA][0-9]+) \| .* \| (now|part|later) \|(.*)\|$", re.MULTILINE)


def test_what_is_called_honoured_names_tests_that_exist() -> None:
    """Nothing is `now` without a test that shows it, and what is `later` claims none."""
    rows = ROW.findall((FOLDER / "requirements.md").read_text())
    assert len(rows) > 100
    named = {requirement: (status, re.findall(r"`(tests/[^`]+)`", tests)) for requirement, status, tests in rows}
    assert [each for each, (status, tests) in named.items() if (status == "later") == bool(tests)] == []
    assert sorted({test for _, tests in named.values() for test in tests if not (ROOT / test).exists()}) == []


def test_every_reason_of_a_size_is_explained() -> None:
    """P8: a word that a pool may say stands in the page that explains its size."""
    page = (ROOT / "docs" / "how-to" / "understand-a-pools-size.md").read_text()
    reasons = {str(reason) for words in (Want, LimitedBy, RateLimitedBy) for reason in words} - {"None"}
    assert {reason for reason in reasons if f"`{reason}`" not in page} == set()


def test_every_reason_of_a_grace_or_a_share_is_explained() -> None:
    page = (ROOT / "docs" / "how-to" / "understand-a-pools-size.md").read_text()
    reasons = {str(reason) for words in (GraceReason, QuotaReason) for reason in words}
    assert {reason for reason in reasons if f"`{reason}`" not in page} == set()
