"""The table of bad input is whole: each row names a test that exists, and an answer that the product can give."""

import ast
import re
from pathlib import Path

import pytest

from fixtures.refusals import TABLE, Row
from poolkeeper.codes import Code

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
ROWS = [pytest.param(row, id=f"{topic}: {row.what}") for topic, rows in TABLE.items() for row in rows]
OTHER = {"nothing", "refused at apply", "dead letter", "left out", "PK400"}


def functions(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def reasons() -> str:
    """All that the operator may write as a reason, as far as its text shows it."""
    return "\n".join(path.read_text() for path in (ROOT / "operator").rglob("*.py"))


def test_each_row_is_shown_by_a_test_that_exists() -> None:
    """Issue: one table, input → answer; a test that was renamed is noticed."""
    known: dict[str, set[str]] = {}
    missing = []
    for rows in TABLE.values():
        for row in rows:
            file, _, name = row.shown.partition("::")
            if file not in known:
                known[file] = functions(TESTS / file) if (TESTS / file).exists() else set()
            if name not in known[file]:
                missing.append(row.shown)
    assert missing == []


@pytest.mark.parametrize("row", ROWS)
def test_each_answer_is_a_code_a_reason_or_an_exit_code(row: Row) -> None:
    """Contract 2."""
    assert row.what
    assert row.remedy
    if row.told.startswith("Ready="):
        assert re.search(rf'"{row.told.removeprefix("Ready=")}"', reasons())
    elif row.told.startswith("exit "):
        assert int(row.told.removeprefix("exit ")) in {0, 1, 2, 3, 4, 5, 130}
    else:
        assert row.told in OTHER or Code(row.told)


def test_each_code_has_a_row_or_is_no_answer_to_bad_input() -> None:
    """Contract 2: a new code of this kind needs a row."""
    told = {row.told for rows in TABLE.values() for row in rows}
    elsewhere = {  # answers to a state of things, each with tests of its own
        "queue_paused", "queue_limit", "tenant_queue_limit", "tenant_suspended", "key_conflict", "key_in_flight", "queue_owned", "already_ended", "not_dead", "stale_version",
        "stale_token", "lease_expired", "canceled", "unknown_task", "max_run_time", "max_tenure", "progress_timeout", "held",
    }  # fmt: skip
    assert {str(code) for code in Code} - told == elsewhere


def test_each_input_in_the_data_has_its_topic() -> None:
    """No topic is empty."""
    assert all(TABLE.values())
    assert sum(len(rows) for rows in TABLE.values()) > 90
