"""What doctor says of facts that no test can bring about in a real server: judgements are pure (Q61, Q17, A8)."""

from typing import Any

import pytest

from poolkeeper.doctor import CHECKS, Finding, Verdict, judge
from poolkeeper.doctor.finding import Unseen
from poolkeeper.doctor.look import Clock, program
from poolkeeper.doctor.recording import recorded
from poolkeeper.store.rows import Installation

HOUR = 3600.0
SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "autovacuum": "on",
    "synchronous_standby_names": "",
}
HERE = program()


def facts(**changed: Any) -> dict[str, Any]:
    """A store that is well, with some facts changed; dictionaries are changed field by field."""
    known: dict[str, Any] = {
        "server": {"version": "18.1", "number": 180001, "standby": False, "encoding": "UTF8", "backend": 1, "settings": SETTINGS},
        "role_settings": [],
        "login": {"login": "a", "superuser": False, "limit": -1, "used": 1, "groups": ["poolkeeper_reader"], "owner": False},
        "access": 0,
        "connections": {"used": 5, "max": 100, "database_used": 5, "database_max": -1, "notifications": 0.0},
        "rights": {"groups_missing": [], "execute_missing": [], "public": [], "owner": {"name": "o", "superuser": False}, "foreign": [], "indexes_invalid": []},
        "tables": [],
        "replication": {"sees_all": True, "states": {}},
        "store": {
            "owner": "o", "sees_all": True, "functions": HERE.functions, "migrations": HERE.migrations, "nobody": 0, "clock_ahead": 0.0,
            "upkeep_ago": 5.0, "months_missing": [], "rest": {"delivery": 0, "event": 0}, "versions": {HERE.version: 2},
            "holders": [], "idle": [], "oldest": None, "schedules": {"late": 0, "refused": 0, "first": None},
        },
        "installation": Installation("0192f0c4-7b1e-7c55-9a2f-5d9a3c1e7b10", HERE.supported.start),  # type: ignore[arg-type]
        "clock": Clock(0.1, 0.01),
        "program": HERE,
        "told": {"backend": 1, "host": "db", "database": "d"},
    }  # fmt: skip
    for name, value in changed.items():
        known[name] = {**known[name], **value} if isinstance(value, dict) else value
    return known


def about(check: str, **changed: Any) -> Finding:
    """One finding."""
    return next(one for one in judge(facts(**changed)) if one.check == check)


def holder(**more: Any) -> dict[str, Any]:
    """Somebody who keeps vacuum back."""
    return {
        "kind": "session",
        "name": "7",
        "user": "u",
        "application": "x",
        "state": "active",
        "seconds": 0.0,
        "xids": 1,
        **more,
    }


def test_all_is_well() -> None:
    """Each check has one finding, in the order of the list."""
    assert [(one.check, one.verdict, one.remedy) for one in judge(facts())] == [
        (name, Verdict.OK, "") for name, _, _ in CHECKS
    ]


@pytest.mark.parametrize(
    ("check", "changed", "verdict", "words"),
    [
        ("server version", {"server": {"number": 140012, "version": "14.12"}}, Verdict.FAULT, "14.12"),
        ("server version", {"server": {"number": 190000, "version": "19.0"}}, Verdict.WARNING, "newer"),
        ("primary", {"server": {"standby": True}}, Verdict.FAULT, "standby"),
        ("primary", {"server": {"encoding": "LATIN1"}}, Verdict.WARNING, "LATIN1"),
        ("durability", {"server": {"settings": {**SETTINGS, "full_page_writes": "off"}}}, Verdict.FAULT, "full_page_writes"),
        ("durability", {"server": {"settings": {**SETTINGS, "synchronous_commit": "off"}}}, Verdict.OK, "raise it"),
        ("replication", {"server": {"settings": {**SETTINGS, "synchronous_standby_names": "b"}}}, Verdict.FAULT, "nothing is accepted"),
        ("replication", {"server": {"settings": {**SETTINGS, "synchronous_standby_names": "b"}}, "replication": {"sees_all": False}}, Verdict.UNSEEN, "does not see"),
        ("replication", {"server": {"settings": {**SETTINGS, "synchronous_standby_names": "b"}}, "replication": {"states": {"sync": 1}}}, Verdict.OK, "wait for b"),
        ("clock", {"clock": Clock(-30.0, 0.01)}, Verdict.WARNING, "30.000 s behind"),
        ("clock", {"clock": Clock(3.0, 2.5)}, Verdict.OK, "give or take"),
        ("connections", {"connections": {"used": 85}}, Verdict.WARNING, "85 of 100"),
        ("connections", {"connections": {"used": 97}}, Verdict.FAULT, "97 of 100"),
        ("connections", {"login": {"limit": 10, "used": 10}}, Verdict.FAULT, 'login "a"'),
        ("notifications", {"connections": {"notifications": 0.3}}, Verdict.WARNING, "30%"),
        ("notifications", {"connections": {"notifications": 0.9}, "store": {"oldest": {"pid": 7, "user": "u", "application": "x", "database": "d", "seconds": 9.0}}}, Verdict.FAULT, "pid 7"),
        ("autovacuum", {"server": {"settings": {**SETTINGS, "autovacuum": "off"}}}, Verdict.FAULT, "autovacuum"),
        ("vacuum", {"store": {"holders": [holder(seconds=HOUR)]}}, Verdict.WARNING, "pid 7"),
        ("vacuum", {"store": {"holders": [holder(seconds=7 * HOUR)]}}, Verdict.FAULT, "25200 s"),
        ("vacuum", {"store": {"holders": [holder(kind="replication slot", name="s", seconds=None, xids=3 * 10**8)]}}, Verdict.FAULT, 'replication slot "s"'),
        ("vacuum", {"store": {"holders": [holder()], "sees_all": False}}, Verdict.UNSEEN, "does not see"),
        ("idle in transaction", {"store": {"idle": [{"pid": 7, "user": "u", "application": "x", "seconds": 90.0, "tables": ["queue"]}]}}, Verdict.FAULT, "in queue"),
        ("dead rows", {"tables": [{"name": "ready", "live": 10, "dead": 500_000, "bytes": 0, "vacuumed_ago": None, "off": False}]}, Verdict.WARNING, "never vacuumed"),
        ("dead rows", {"tables": [{"name": "lease", "live": 10, "dead": 5, "bytes": 2**30, "vacuumed_ago": 60.0, "off": False}]}, Verdict.WARNING, "1024 MiB"),
        ("rights", {"rights": {"groups_missing": ["poolkeeper_worker"]}}, Verdict.FAULT, "poolkeeper_worker"),
        ("schema", {"installation": Installation(None, None)}, Verdict.FAULT, "none"),  # type: ignore[arg-type]
        ("schedules", {"store": {"schedules": {"late": 2, "refused": 1, "first": "default/q tick"}}}, Verdict.FAULT, "default/q tick"),
        ("schedules", {"store": {"schedules": {"late": 0, "refused": 1, "first": "default/q tick"}}}, Verdict.WARNING, "1 could not be fired"),
        ("worker versions", {"store": {"versions": {"unknown": 1}}}, Verdict.WARNING, "1 of unknown"),
        ("months", {"store": Unseen("not for this login", "ask another")}, Verdict.UNSEEN, "not for this login"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_remedy(
    check: str, changed: dict[str, Any], verdict: Verdict, words: str
) -> None:
    one = about(check, **changed)
    assert (one.check, one.verdict) == (check, verdict)
    assert words in one.sentence
    assert (verdict is Verdict.OK) == (one.remedy == "")


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 0),
        ({"log_statement": "ddl", "log_parameter_max_length": "-1"}, 0),
        ({"log_statement": "mod", "log_parameter_max_length": "-1"}, 0),
        ({"log_statement": "all", "log_parameter_max_length": "-1"}, 1),
        ({"log_statement": "all", "log_parameter_max_length": "0"}, 0),
        ({"log_min_duration_statement": "-1", "log_parameter_max_length": "-1"}, 0),
        ({"log_min_duration_statement": "0", "log_parameter_max_length": "64"}, 1),
        ({"log_min_duration_sample": "10", "log_statement_sample_rate": "0", "log_parameter_max_length": "-1"}, 0),
        ({"log_min_duration_sample": "10", "log_statement_sample_rate": "0.1", "log_parameter_max_length": "-1"}, 1),
        ({"log_transaction_sample_rate": "0", "log_parameter_max_length": "-1"}, 0),
        ({"log_transaction_sample_rate": "0.01", "log_parameter_max_length": "-1"}, 1),
        ({"log_parameter_max_length_on_error": "0"}, 0),
        ({"log_parameter_max_length_on_error": "-1"}, 1),
        ({"auto_explain.log_min_duration": "-1", "auto_explain.log_parameter_max_length": "-1"}, 0),
        ({"auto_explain.log_min_duration": "50", "auto_explain.log_parameter_max_length": "-1"}, 1),
        ({"auto_explain.log_min_duration": "50", "auto_explain.log_parameter_max_length": "0"}, 0),
        ({"auto_explain.log_min_duration": "50", "auto_explain.log_nested_statements": "on"}, 1),
        ({"pgaudit.log": "none", "pgaudit.log_parameter": "on"}, 0),
        ({"pgaudit.log": "read", "pgaudit.log_parameter": "off"}, 0),
        ({"pgaudit.log": "read", "pgaudit.log_parameter": "on"}, 1),
    ],
)
def test_settings_that_record_parameters(settings: dict[str, str], count: int) -> None:
    """Q17: tokens are bound parameters; each way into a log is told, and what does no harm is not."""
    assert len(recorded({"log_parameter_max_length": "0", **settings})) == count


@pytest.mark.parametrize("typed", ["0", "250ms", "1s", "5min", "1h"])
def test_a_setting_of_one_login_is_read_as_it_was_typed(typed: str) -> None:
    """Q17: with its unit; -1 and a length of zero bytes are off."""
    entry = {"role": "w", "settings": [f"log_min_duration_statement={typed}"]}
    one = about("recorded parameters", role_settings=[entry])
    assert one.verdict is Verdict.WARNING
    assert 'of login "w"' in one.sentence
    off = [
        {"role": None, "settings": ["log_parameter_max_length=0B"]},
        {"role": "w", "settings": ["log_min_duration_statement=-1"]},
    ]
    assert about("recorded parameters", role_settings=off).verdict is Verdict.OK
