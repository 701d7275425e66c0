"""What `make mutate` knows and keeps: the guards that no test can see, each with its reason, and who reached what (quality 3)."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mutate.__main__ import ALLOWED, KNOWN, full_name, known, sources
from mutate.guards import Guard, guards
from mutate.loop import last_killers
from mutate.mutant import texts_without
from mutate.reach import ANY, LAST, Reach
from poolkeeper.store import migrate

SOURCES = {
    "x.sql": "CREATE OR REPLACE FUNCTION poolkeeper.inner_one() AS $$ $$;\n"
    "CREATE OR REPLACE FUNCTION poolkeeper.outer_one() AS $$ SELECT poolkeeper.inner_one() FROM poolkeeper.t $$;\n"
}


def test_each_known_survivor_is_still_there_and_has_a_reason() -> None:
    """One whose text has changed or gone is taken off the list, or it would excuse another one some day."""
    there = [full_name(guard) for name, text in sources().items() for guard in guards(name, text)]
    lines = [line for line in KNOWN.read_text().splitlines() if line and not line.startswith("#")]
    assert [name for name, n in Counter(line.rsplit(" | ", 1)[0] for line in lines).items() if n > 1] == []
    reasons = known()
    assert sorted(reasons.keys() - set(there)) == []
    assert [name for name, reason in reasons.items() if len(reason) < len("as the one above")] == []
    assert lines == sorted(lines)
    assert 100 * len(reasons) <= ALLOWED * len(there)


def test_a_migration_reads_all_as_it_stands_but_for_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that whatever a test migrates by itself lacks it, and is up to date."""
    texts = sources()
    file = "12_access.sql"
    guard = guards(file, texts[file])[0]
    whole = migrate.functions()
    monkeypatch.setattr(migrate, "sql_file", texts_without(guard))
    lacks = migrate.functions()
    assert lacks.text == whole.text.replace(texts[file], guard.without(texts[file])) != whole.text
    assert lacks.checksum != whole.checksum


def item(path: Path, name: str) -> Any:
    return SimpleNamespace(path=path, nodeid=f"{path.name}::{name}")


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "test_a.py"
    path.write_text("one")
    return path


def test_what_a_test_reaches_is_kept_until_something_changes(tmp_path: Path, module: Path) -> None:
    """Its own text or that of the stage: else the next run begins at once; what is called by now is reached as well."""
    tests = [item(module, "one"), item(module, "two")]
    kept = tmp_path / "kept"
    first = Reach(kept, SOURCES)
    assert first.known(tests) == tests
    first.learn(tests, {"test_a.py::one": (0.5, ["outer_one"]), "test_a.py::two": (2.0, [ANY])}, [])
    again = Reach(kept, SOURCES)
    assert again.known(tests) == []
    assert again.seconds("test_a.py::one") == 0.5
    calls_more = (
        f"{SOURCES['x.sql']}CREATE OR REPLACE FUNCTION poolkeeper.outer_one() AS $$ SELECT poolkeeper.third() $$;"
    )
    grown = Reach(kept, {"x.sql": f"{calls_more}CREATE OR REPLACE FUNCTION poolkeeper.third() AS $$ $$;"})
    assert grown.known(tests) == []
    assert "test_a.py::one" in grown.of(Guard("x.sql", "third", "WHERE", "a", 0, 1, "true"))
    (tmp_path / "scene.py").write_text("another stage")
    assert Reach(kept, SOURCES).known(tests) == tests
    module.write_text("two")
    assert Reach(kept, SOURCES).known(tests) == tests


def test_a_module_with_a_red_test_is_run_again(tmp_path: Path, module: Path) -> None:
    """What it reached before it failed is not all that it reaches."""
    tests = [item(module, "one"), item(module, "two")]
    Reach(tmp_path / "kept", SOURCES).learn(tests, {"test_a.py::one": (0.5, ["outer_one"])}, ["test_a.py::two"])
    assert Reach(tmp_path / "kept", SOURCES).known(tests) == tests


def test_what_is_inlined_is_reached_by_whoever_mentions_it(tmp_path: Path, module: Path) -> None:
    """Postgres does not count calls of a function that it inlines, nor looks at a table."""
    tests = [item(module, "one"), item(module, "two"), item(module, "far")]
    reach = Reach(tmp_path / "kept", SOURCES)
    reach.learn(
        tests,
        {"test_a.py::one": (0.5, ["outer_one"]), "test_a.py::two": (2.0, [ANY]), "test_a.py::far": (1.0, ["third"])},
        [],
    )
    for inside in ("inner_one", "t"):
        found = reach.of(Guard("x.sql", inside, "WHERE", "a", 0, 1, "true"))
        assert found == {"test_a.py::one": 0.5, "test_a.py::two": LAST}


def test_what_is_inlined_here_and_not_there_is_reached_by_both(tmp_path: Path, module: Path) -> None:
    """Some calls of a function in plain SQL are counted, others are not: a test of either may see it."""
    kind = "LANGUAGE sql AS $$"
    sources = {"x.sql": SOURCES["x.sql"].replace("AS $$", kind)}
    sources["x.sql"] += "CREATE OR REPLACE FUNCTION poolkeeper.outermost() AS $$ SELECT poolkeeper.outer_one() $$;\n"
    reach = Reach(tmp_path / "kept", sources)
    told = {"counted": "inner_one", "around": "outer_one", "farther": "outermost", "beside": "third"}
    tests = {f"test_a.py::{name}": (0.5, [function]) for name, function in told.items()}
    reach.learn([item(module, name) for name in told], tests, [])
    found = reach.of(Guard("x.sql", "inner_one", "WHERE", "a", 0, 1, "true"))
    assert found == {f"test_a.py::{name}": 0.5 for name in ("counted", "around", "farther")}


def test_what_ends_by_an_error_is_reached_all_the_same(tmp_path: Path, module: Path) -> None:
    """Postgres counts no call that raised: what a test of a refusal names is reached, with all that it calls."""
    reach = Reach(tmp_path / "kept", SOURCES)
    reach.learn([item(module, "one")], {"test_a.py::one": (0.5, ["far"])}, [])
    guard = Guard("x.sql", "inner_one", "refusal", "a", 0, 1, "false")
    for source, seen in (("run(calls.outer_one())", False), ("with raises(Forbidden): run(calls.outer_one())", True)):
        reach.raises("test_a.py::one", source)
        reach.raises("test_a.py::unknown", source)
        assert ("inner_one" in reach._tests["test_a.py::one"][1]) == seen
    assert reach.of(guard) == {"test_a.py::one": 0.5}


def test_who_calls_a_function_by_its_name_comes_first(tmp_path: Path, module: Path) -> None:
    """A test of this function alone sees more of it, sooner, than one of a call that reaches it."""
    reach = Reach(tmp_path / "kept", SOURCES)
    reach.learn([item(module, "one")], {"test_a.py::one": (0.5, ["far"]), "test_a.py::two": (0.5, ["inner_one"])}, [])
    reach.raises("test_a.py::one", "SELECT poolkeeper.inner_one()")
    reach.raises("test_a.py::two", "run(calls.outer_one())")
    assert reach.naming("inner_one") == {"test_a.py::one"}
    assert reach.naming("outer_one") == set()


def test_the_killers_of_the_last_run_are_read(tmp_path: Path) -> None:
    """With them the next run tries the right test first; without them it begins anew."""
    assert last_killers(tmp_path) == {}
    (tmp_path / "killers.json").write_text(json.dumps({"a": "t::x", "b": ""}))
    assert last_killers(tmp_path) == {"a": "t::x", "b": ""}
