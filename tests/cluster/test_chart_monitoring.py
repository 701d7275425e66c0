"""What the chart brings for Prometheus and Grafana: nothing unless asked, then the committed rules and dashboard (A6, A11)."""

import json
from pathlib import Path

import yaml

from cluster.test_chart import CHART, of_kind, template

FILES = CHART / "files" / "monitoring"
KINDS = ("PodMonitor", "PrometheusRule", "ConfigMap")
RULES = yaml.safe_load((FILES / "alerts.yaml").read_text())


def test_nothing_of_it_is_installed_unless_asked() -> None:
    """A cluster without the Prometheus operator has no such kinds, and would refuse the release."""
    assert [each for kind in KINDS for each in of_kind(kind, template())] == []


def test_the_operators_pods_are_scraped_with_the_labels_that_they_tell() -> None:
    """Without honorLabels every metric would have the operator's own namespace."""
    made = template("podMonitor.install=true", "podMonitor.labels.release=stack")
    (monitor,) = of_kind("PodMonitor", made)
    (deployment,) = of_kind("Deployment", made)
    pod = deployment["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint == {"port": "http", "path": "/metrics", "honorLabels": True}
    assert "http" in {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    assert monitor["metadata"]["labels"]["release"] == "stack"
    assert [kind for kind in KINDS if of_kind(kind, made)] == ["PodMonitor"]


def test_the_rules_are_the_committed_ones_with_their_pages_where_the_user_has_them() -> None:
    (rule,) = of_kind("PrometheusRule", template("alerts.install=true"))
    assert rule["spec"] == RULES
    (rule,) = of_kind(
        "PrometheusRule",
        template("alerts.install=true", "alerts.runbooks=https://wiki.example.com/pk", "alerts.labels.team=a"),
    )
    urls = {each["annotations"]["runbook_url"] for group in rule["spec"]["groups"] for each in group["rules"]}
    assert "https://wiki.example.com/pk/PoolkeeperNoLeader.md" in urls
    assert all(url.startswith("https://wiki.example.com/pk/Poolkeeper") for url in urls)
    assert rule["metadata"]["labels"]["team"] == "a"


def test_the_dashboard_is_found_by_grafanas_sidecar(tmp_path: Path) -> None:
    (made,) = of_kind("ConfigMap", template("dashboard.install=true"))
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(made["data"]["poolkeeper.json"]) == json.loads((FILES / "dashboard.json").read_text())
