"""Each alert fires on its trouble and on nothing else, names metrics that there are, and has a page that helps (A11, A8)."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fixtures.alerts import RULES, Labels, alerts, case, judge, promtool, series
from poolkeeper_operator.act.trouble import KINDS, VACUUM
from reference.metrics import SERVED_BY, metrics

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = RULES.with_name("dashboard.json")
RUNBOOKS = ROOT / "docs" / "runbooks"
MAIL = {"namespace": "team-a", "queue": "mail"}
POOL = {"namespace": "team-a", "pool": "mail"}
MAIN = {"namespace": "team-a", "database": "main"}
ALL = "0x60"


def trouble(word: str) -> dict[str, str]:
    return series("poolkeeper_queue_trouble", "0x30 1x30", **MAIL, trouble=word)


TROUBLED: dict[str, tuple[Labels, dict[str, str]]] = {
    "PoolkeeperDeadLetters": (MAIL, series("poolkeeper_queue_dead_letters_last_minute", "0x57 1 0x2", **MAIL)),
    "PoolkeeperDeadLettersGrowing": (MAIL, trouble("DeadLettersGrowing")),
    "PoolkeeperDeadLettersLeft": (MAIL, trouble("DeadLettersTooOld")),
    "PoolkeeperTasksWait": (MAIL, series("poolkeeper_queue_oldest_runnable_seconds", "0+60x60", **MAIL)),
    "PoolkeeperLeaseTooShort": (MAIL, trouble("LeaseTooShort")),
    "PoolkeeperWorkersDying": (MAIL, trouble("WorkersDying")),
    "PoolkeeperNoCapableWorker": (MAIL, trouble("NoCapableWorker")),
    "PoolkeeperRetryStorm": (MAIL, trouble("RetryStorm")),
    "PoolkeeperSchedulesLate": (MAIL, trouble("SchedulesLate")),
    "PoolkeeperWebhookFailing": (MAIL, trouble("WebhookFailing")),
    "PoolkeeperVacuumHeld": (MAIN, series("poolkeeper_database_trouble", "0x30 1x30", **MAIN, trouble=VACUUM)),
    "PoolkeeperDatabaseNotReady": (MAIN, series("poolkeeper_database_ready", "1x50 0x10", **MAIN)),
    "PoolkeeperPoolBlind": (POOL, series("poolkeeper_pool_blind", "0x50 1x10", **POOL)),
    "PoolkeeperPoolNotReady": (POOL, series("poolkeeper_pool_ready", "1x40 0x20", **POOL)),
    "PoolkeeperDrainsCutShort": (POOL, series("poolkeeper_pool_drain_budget_ok", "1x20 0x40", **POOL)),
    "PoolkeeperNoLeader": ({}, series("poolkeeper_operator_leader", "1x50 0x10", pod="a")),
    "PoolkeeperInvariantBroken": (
        {**MAIN, "invariant": "one_place"},
        series("poolkeeper_audit_violations", "0x50 2x10", **MAIN, invariant="one_place"),
    ),
    "PoolkeeperReconcileFails": (
        {"kind": "WorkerPool"},
        series("poolkeeper_operator_reconcile_failures_total", "0x30 0+3x30", kind="WorkerPool"),
    ),
}
"""Alert -> the labels with which it fires, and the series that makes it fire."""

HEALTHY = [
    *(series("poolkeeper_queue_trouble", ALL, **MAIL, trouble=word) for word in KINDS),
    series("poolkeeper_database_trouble", ALL, **MAIN, trouble=VACUUM),
    series("poolkeeper_queue_dead_letters_last_minute", ALL, **MAIL),
    series("poolkeeper_queue_oldest_runnable_seconds", "0+1x60", **MAIL),
    series("poolkeeper_database_ready", "1x60", **MAIN),
    series("poolkeeper_pool_ready", "1x20 0x5 1x35", **POOL),  # a pod that took long to start
    series("poolkeeper_pool_blind", "0x20 1 0x39", **POOL),  # a blip of the database
    series("poolkeeper_pool_drain_budget_ok", "1x60", **POOL),
    series("poolkeeper_operator_leader", "1x60", pod="a"),
    series("poolkeeper_operator_leader", ALL, pod="b"),
    series("poolkeeper_audit_violations", ALL, **MAIN, invariant="one_place"),
    series(
        "poolkeeper_operator_reconcile_failures_total", "0x30 5x30", kind="WorkerPool"
    ),  # a restart of the API server
]


def with_trouble(bad: dict[str, str]) -> list[dict[str, str]]:
    return [each for each in HEALTHY if each["series"] != bad["series"]] + [bad]


def test_each_alert_fires_on_its_trouble_and_on_nothing_else(tmp_path: Path) -> None:
    """A11: with its labels and its sentence; on an hour of a healthy installation none of them does."""
    assert set(TROUBLED) == set(alerts())
    judge(
        tmp_path,
        case("healthy", HEALTHY, []),
        *(case(alert, with_trouble(bad), [(alert, labels)]) for alert, (labels, bad) in TROUBLED.items()),
    )


def test_no_operator_at_all_is_told_too(tmp_path: Path) -> None:
    """A11: what is not there has no series: an operator that is gone, or not scraped."""
    judge(tmp_path, case("nobody", [series("up", ALL)], [("PoolkeeperNoLeader", {})]))


def test_a_rule_that_would_never_fire_is_found(tmp_path: Path) -> None:
    """So that the test above cannot pass by comparing nothing."""
    with pytest.raises(AssertionError, match="PoolkeeperRetryStorm"):
        judge(tmp_path, case("healthy", HEALTHY, [("PoolkeeperRetryStorm", MAIL)]))


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def queries() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def test_every_metric_that_a_rule_or_panel_names_is_one_of_ours() -> None:
    """A8: a renamed metric would leave an alert that never fires."""
    known = {metric.name: metric for folder in SERVED_BY.values() for metric in metrics(folder)}
    for text in [*(rule["expr"] for rule in alerts().values()), *queries()]:
        names = re.findall(r"poolkeeper_\w+", text)
        assert names
        assert set(names) <= set(known), text
        for word in re.findall(r"by \(([^)]*)\)", text):
            labels = {label for name in names for label in known[name].labels}
            assert set(word.split(", ")) <= labels, text


def test_every_word_of_trouble_has_an_alert_and_every_alert_a_word_that_exists() -> None:
    """O25: what stands in status.trouble is told to somebody."""
    named = re.findall(r'trouble=~?"([^"]+)"', " ".join(rule["expr"] for rule in alerts().values()))
    assert {word for each in named for word in each.split("|")} == {*KINDS, VACUUM}


@pytest.mark.parametrize("alert", sorted(TROUBLED))
def test_each_alert_has_a_page_that_says_what_to_do(alert: str) -> None:
    """A11: what it means, what to look at, what to do; the expression on the page is the rule's."""
    rule = alerts()[alert]
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{alert}.md"
    assert rule["labels"]["severity"] in {"page", "ticket"}
    page = (RUNBOOKS / f"{alert}.md").read_text()
    assert page.startswith(f"# {alert}\n")
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        "## What to look at",
        "## What to do",
        "## When it fires",
    ]
    assert rule["expr"] in page
    assert f"Severity `{rule['labels']['severity']}`" in page
    assert f"runbooks/{alert}.md" in (ROOT / "docs" / "operations.md").read_text()


def test_no_page_is_about_an_alert_that_is_gone() -> None:
    assert {page.stem for page in RUNBOOKS.glob("*.md")} == set(alerts())


def test_the_rules_and_the_queries_of_the_panels_can_be_read_by_prometheus(tmp_path: Path) -> None:
    """A6: by the program itself; Grafana's variables filled in."""
    filled = [query.replace("$__rate_interval", "5m").replace("$namespace", ".*") for query in queries()]
    records = [{"record": f"panel:{n}", "expr": query} for n, query in enumerate(filled)]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": records}]}))
    done = subprocess.run([promtool(), "check", "rules", file, RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_two_panels_lie_on_each_other() -> None:
    """A6: each has a place, a title and a query."""
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels()]
    assert len(set(places)) == len(places) == len({p["id"] for p in panels()})
    assert all(p["title"] and p["targets"] and p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in panels())
