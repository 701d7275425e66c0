"""Which guards `make mutate` finds in SQL, and what stands there without them (quality 3)."""

import pytest

from mutate.guards import guards
from poolkeeper.store.statements import sql_file, sql_names

FUNCTION = "CREATE OR REPLACE FUNCTION poolkeeper.f() RETURNS void\nLANGUAGE plpgsql\nAS $$\nBEGIN\n    {}\nEND $$;\n"
CASES = {
    "each conjunct": (
        "DELETE FROM t WHERE a = 1 AND b < (SELECT 2 WHERE c AND d) RETURNING x;",
        ["WHERE: a = 1", "WHERE: b < (SELECT 2 WHERE c AND d)", "WHERE: c", "WHERE: d"],
    ),
    "or is one guard": ("PERFORM 1 FROM t WHERE a OR b AND c ORDER BY d;", ["WHERE: a OR b AND c"]),
    "between has an and": (
        "PERFORM 1 FROM t WHERE a BETWEEN 1 AND 2 AND b LIMIT 1;",
        ["WHERE: a BETWEEN 1 AND 2", "WHERE: b"],
    ),
    "an and in a case": (
        "PERFORM 1 FROM t WHERE CASE WHEN a AND b THEN c END AND d;",
        ["WHERE: CASE WHEN a AND b THEN c END", "WHERE: d"],
    ),
    "joins": ("PERFORM 1 FROM a JOIN b ON b.x = a.x AND b.y LEFT JOIN c ON true;", ["ON: b.x = a.x", "ON: b.y"]),
    "not every on": ("INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET b = 2 WHERE t.b < 2;", ["WHERE: t.b < 2"]),
    "locks": (
        "PERFORM 1 FROM t WHERE a LIMIT 1 FOR NO KEY UPDATE OF t SKIP LOCKED;",
        ["WHERE: a", "lock: FOR NO KEY UPDATE OF t SKIP LOCKED", "skip locked: SKIP LOCKED"],
    ),
    "a loop's where": ("FOR x IN SELECT 1 FROM t WHERE a LOOP NULL; END LOOP;", ["WHERE: a"]),
    "refusals": ("IF a AND b THEN RAISE EXCEPTION 'no'; ELSIF c THEN x := 1; END IF;", ["refusal: a AND b"]),
    "a refusal after some steps": ("IF a THEN x := 1; IF b THEN y := 1; END IF; RETURN; END IF;", ["refusal: a"]),
    "codes": (
        "x := CASE WHEN a THEN 'key_conflict' WHEN b THEN 'other' ELSE 'no_code' END;",
        ["arm: a"],
    ),
    "comments and literals": (
        "PERFORM 1 FROM t WHERE a = 'x AND y' -- AND z\n AND b;",
        ["WHERE: a = 'x AND y'", "WHERE: b"],
    ),
    "columns called like a keyword": (
        "PERFORM 1 FROM t WHERE NOT t.full AND t.limit > 1;",
        ["WHERE: NOT t.full", "WHERE: t.limit > 1"],
    ),
    "from is no end where it distinguishes": (
        "PERFORM 1 FROM t WHERE a IS DISTINCT FROM b AND c;",
        ["WHERE: a IS DISTINCT FROM b", "WHERE: c"],
    ),
    "demands": (
        "PERFORM poolkeeper.demand(a AND b, 'no', 'other'); PERFORM poolkeeper.demand_it(); PERFORM poolkeeper.caller(); PERFORM other();",
        [
            "demand: PERFORM poolkeeper.demand(a AND b, 'no', 'other')",
            "demand: PERFORM poolkeeper.demand_it()",
            "demand: PERFORM poolkeeper.caller()",
        ],
    ),
    "ends of loops": (
        "LOOP EXIT WHEN a AND b; CONTINUE WHEN c; IF d THEN x := 1; CONTINUE; END IF; IF e THEN EXIT WHEN f; END IF; END LOOP;",
        ["jump: a AND b", "jump: c", "refusal: d", "jump: f"],
    ),
    "what is there already": (
        "INSERT INTO t VALUES (1) ON CONFLICT (a) DO NOTHING; INSERT INTO t VALUES (2) ON CONFLICT DO NOTHING RETURNING a INTO b;",
        ["conflict: ON CONFLICT (a) DO NOTHING", "conflict: ON CONFLICT DO NOTHING"],
    ),
    "a figure is none": ("PERFORM count(*) FILTER (WHERE a) FROM t;", []),
}


@pytest.mark.parametrize("case", CASES)
def test_each_guard_is_found_once_and_can_be_taken_out(case):
    """The name says where, what and which; the text without it has the constant in its place."""
    body, wanted = CASES[case]
    source = FUNCTION.format(body)
    found = guards("x.sql", source)
    assert [guard.name for guard in found] == [f"f: {name}" for name in wanted]
    for guard in found:
        without = guard.without(source)
        assert without != source
        assert len(guards("x.sql", without)) <= len(found)


def test_what_a_function_says_yes_to_has_guards():
    """Of one that is a single SELECT and answers yes or no: one condition alone would leave nothing of it."""
    head = "CREATE OR REPLACE FUNCTION poolkeeper.f() RETURNS boolean\nLANGUAGE sql IMMUTABLE\nAS $$ SELECT {} $$;\n"
    for body, wanted in (
        ("a AND (b OR c) FROM t WHERE d", ["answer: a", "answer: (b OR c)", "WHERE: d"]),
        ("a IS DISTINCT FROM b AND c", ["answer: a IS DISTINCT FROM b", "answer: c"]),
        ("EXISTS (SELECT FROM t WHERE a AND b)", ["WHERE: a", "WHERE: b"]),
        ("a OR b", []),
    ):
        assert [guard.name.removeprefix("f: ") for guard in guards("x.sql", head.format(body))] == wanted


def test_what_a_guard_answers_is_known():
    """Tests speak of the code or of the words, by which the likeliest of them are found."""
    body = "IF a THEN RAISE EXCEPTION 'no such thing'; END IF; x := CASE WHEN b THEN 'key_conflict' END;"
    refusal, arm = guards("x.sql", FUNCTION.format(body))
    assert "no such thing" in refusal.answer
    assert "key_conflict" in arm.answer


def test_tables_have_guards_of_their_own():
    """CHECK, UNIQUE, keys and foreign keys."""
    source = (
        "CREATE TABLE poolkeeper.t (\n    a integer PRIMARY KEY CHECK (a > 0),\n    b integer REFERENCES poolkeeper.u,\n"
        "    UNIQUE (a, b)\n);\nCREATE UNIQUE INDEX i ON poolkeeper.t (b) WHERE b > 1;\n"
    )
    found = [(guard.kind, guard.text, guard.instead) for guard in guards("x.sql", source)]
    assert found == [
        ("unique", "PRIMARY KEY", ""),
        ("check", "a > 0", "true"),
        ("foreign key", "REFERENCES poolkeeper.u", ""),
        ("unique", "UNIQUE (a, b)", "CHECK (true)"),
        ("unique", "UNIQUE", ""),
    ]


def test_the_same_text_twice_is_two_guards():
    """Each has a name of its own, which stays while the text does."""
    source = FUNCTION.format("PERFORM 1 FROM t WHERE a; PERFORM 2 FROM t WHERE a;")
    assert [guard.name for guard in guards("x.sql", source)] == ["f: WHERE: a", "f: WHERE: a #2"]


def test_the_stores_own_text_is_understood():
    """Every name is there once, each is of a function or table, and what is known for certain is among them."""
    found = [
        guard
        for folder in ("migrations", "functions")
        for name in sql_names(folder)
        for guard in guards(name, sql_file(f"{folder}/{name}"))
    ]
    names = [guard.name for guard in found]
    assert len(names) == len(set(names))
    assert all(guard.inside for guard in found)
    assert "lease: unique: PRIMARY KEY (task_id)" in names
    assert any(name.startswith("grant_shares: lock: FOR UPDATE SKIP LOCKED") for name in names)
