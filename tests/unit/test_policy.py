"""The queue policy: strict about names, exact about units, the same with and without Kubernetes."""

import pytest
from pydantic import ValidationError

from poolkeeper.policy import PolicyError, QueuePolicy, read_policy

DEFAULTS: dict[str, object] = {
    "visibility_timeout_seconds": 15.0,
    "max_age_seconds": None,
    "max_run_time_seconds": None,
    "max_tenure_seconds": None,
    "progress_timeout_seconds": None,
    "max_deliveries": 5,
    "max_hand_backs": 20,
    "max_snoozes": 100,
    "task_types": [],
    "paused_task_types": [],
    "suspended_tenants": [],
    "ordering": "block",
    "wake_up": "notify",
    "backoff_initial_seconds": 1.0,
    "backoff_max_seconds": 600.0,
    "backoff_factor_percent": 200,
    "backoff_max_elapsed_seconds": None,
    "priority_min": 0,
    "priority_max": 9,
    "priority_default": 4,
    "priority_age_seconds": 300.0,
    "max_payload_bytes": 65536,
    "max_waiting": None,
    "max_waiting_per_tenant": None,
    "concurrency_max": None,
    "retry_share_percent": 20,
    "per_tenant_max": None,
    "tenants": [],
    "checkpoint_max_bytes": 65536,
    "checkpoint_max_per_second": 10,
    "dead_letter_owner": None,
    "retention_payload_seconds": 604_800.0,
    "retention_result_seconds": 604_800.0,
    "retention_checkpoint_seconds": 86_400.0,
    "retention_events_seconds": 2_592_000.0,
    "retention_dead_letters_seconds": 7_776_000.0,
    "retention_keys_seconds": 7_776_000.0,
    "dead_letter_runbook": None,
    "paused": False,
}


def test_an_empty_policy_has_the_documented_defaults():
    assert QueuePolicy().to_store() == DEFAULTS


@pytest.mark.parametrize(
    ("spec", "key", "value"),
    [
        ({"visibilityTimeout": "500ms"}, "visibility_timeout_seconds", 0.5),
        ({"maxAge": "24h"}, "max_age_seconds", 86_400.0),
        ({"maxRunTime": "1h"}, "max_run_time_seconds", 3600.0),
        ({"maxTenure": "24h"}, "max_tenure_seconds", 86_400.0),
        ({"progressTimeout": "10m"}, "progress_timeout_seconds", 600.0),
        ({"maxDeliveries": 3}, "max_deliveries", 3),
        ({"maxHandBacks": 2}, "max_hand_backs", 2),
        ({"maxSnoozes": 7}, "max_snoozes", 7),
        ({"taskTypes": ["orders.confirm"]}, "task_types", ["orders.confirm"]),
        ({"retrySharePercent": 35}, "retry_share_percent", 35),
        ({"ordering": "Skip"}, "ordering", "skip"),
        ({"wakeUp": "Poll"}, "wake_up", "poll"),
        ({"backoff": {"initial": "2s"}}, "backoff_initial_seconds", 2.0),
        ({"backoff": {"max": "1h"}}, "backoff_max_seconds", 3600.0),
        ({"backoff": {"factorPercent": 150}}, "backoff_factor_percent", 150),
        ({"backoff": {"maxElapsed": "6h"}}, "backoff_max_elapsed_seconds", 21_600.0),
        ({"priority": {"min": 1}}, "priority_min", 1),
        ({"priority": {"max": 8}}, "priority_max", 8),
        ({"priority": {"default": 5}}, "priority_default", 5),
        ({"priority": {"ageEvery": "1m"}}, "priority_age_seconds", 60.0),
        ({"admission": {"maxPayloadSize": "1Ki"}}, "max_payload_bytes", 1024),
        ({"admission": {"maxWaiting": 7}}, "max_waiting", 7),
        ({"admission": {"maxWaitingPerTenant": 7}}, "max_waiting_per_tenant", 7),
        ({"concurrency": {"max": 200}}, "concurrency_max", 200),
        (
            {"concurrency": {"tenants": [{"name": "acme", "maxWaiting": 7}]}},
            "tenants",
            [{"name": "acme", "max_running": None, "weight": 1, "max_waiting": 7}],
        ),
        ({"checkpoint": {"maxSize": "2Ki"}}, "checkpoint_max_bytes", 2048),
        ({"checkpoint": {"maxPerSecond": 1}}, "checkpoint_max_per_second", 1),
        ({"retention": {"payload": "1h"}}, "retention_payload_seconds", 3600.0),
        ({"retention": {"result": "1h"}}, "retention_result_seconds", 3600.0),
        ({"retention": {"checkpoint": "1h"}}, "retention_checkpoint_seconds", 3600.0),
        ({"retention": {"events": "1h"}}, "retention_events_seconds", 3600.0),
        ({"retention": {"deadLetters": "1h"}}, "retention_dead_letters_seconds", 3600.0),
        ({"retention": {"keys": "3000h"}}, "retention_keys_seconds", 10_800_000.0),
        ({"deadLetter": {"owner": "team-a"}}, "dead_letter_owner", "team-a"),
        (
            {"deadLetter": {"runbookURL": "https://runbooks.example.com/a"}},
            "dead_letter_runbook",
            "https://runbooks.example.com/a",
        ),
        ({"paused": True}, "paused", True),
    ],
)
def test_each_field_changes_its_own_key_and_no_other(spec, key, value):
    assert QueuePolicy.model_validate(spec).to_store() == DEFAULTS | {key: value}


def test_a_tenant_has_one_row_of_limits():
    with pytest.raises(PolicyError, match=r'names "acme" twice'):
        read_policy({"concurrency": {"tenants": [{"name": "acme"}, {"name": "b"}, {"name": "acme"}]}}, what="queue q")


@pytest.mark.parametrize("name", ["payload", "result", "checkpoint", "events", "deadLetters"])
def test_a_key_is_never_kept_for_less_than_what_it_guards(name):
    """Q6: the sentence names both fields and says what to do."""
    with pytest.raises(
        PolicyError, match=f"keys must not be shorter than retention.{name}; raise keys or lower {name}"
    ):
        read_policy({"retention": {name: "2161h"}}, what="q")
    assert read_policy({"retention": {name: "2161h", "keys": "2161h"}}, what="q").retention


def test_what_only_kubernetes_needs_is_left_out():
    assert read_policy({"databaseRef": {"name": "main"}, "paused": True}, what="q").paused


def test_all_faults_are_named_at_once_with_their_place():
    spec = {"visibilityTimeout": "2", "backof": {}, "maxDeliveries": 0, "priority": {"default": 12}}
    with pytest.raises(PolicyError) as refused:
        read_policy(spec, what='queue "agents" in q.yaml')
    text = str(refused.value)
    assert text.startswith('queue "agents" in q.yaml: ')
    assert 'spec.visibilityTimeout: "2" is not a duration' in text
    assert "spec.backof: there is no such field; check its spelling or remove it" in text
    assert "spec.maxDeliveries:" in text
    assert "spec.priority: priority must satisfy min <= default <= max" in text


@pytest.mark.parametrize(
    "spec",
    [
        {"visibilityTimeout": "400ms"},
        {"concurrency": {"max": 0}},
        {"backoff": {"initial": "1h", "max": "1m"}},
        {"taskTypes": ["Upper"]},
        {"deadLetter": {"runbookURL": "see the wiki"}},
        {"admission": {"maxPayloadSize": "0"}},
    ],
)
def test_nonsense_is_refused(spec):
    with pytest.raises(ValidationError):
        QueuePolicy.model_validate(spec)


def test_a_policy_does_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        QueuePolicy().paused = True  # type: ignore[misc]
