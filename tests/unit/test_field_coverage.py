"""A field is honoured: each leaf of each spec has a test that sees what changing it changes (quality 6).

A leaf that is added without a row here fails, and so does a row whose test is gone.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from poolkeeper_operator.resources import KINDS
from poolkeeper_operator.resources.schema import schema_of

ROOT = Path(__file__).resolve().parents[2]
WEBHOOK = "tests/operator/test_webhooks.py::test_a_batch_is_posted_until_it_was_taken_as_one_signed_event"
ALERT = "tests/operator/test_trouble.py::test_growing_dead_letters_are_trouble_until_it_is_calm"
POLICY = "tests/store/test_policy_fields.py::"
CHILDREN = "tests/unit/test_children.py::test_a_field_of_the_template_is_found_in_the_pods_and_makes_a_new_build"
PLACED = "tests/unit/test_build_deployment.py::test_pods_run_where_and_in_what_the_pool_says"
NO_BUILD = "tests/unit/test_children.py::test_a_field_that_pods_do_not_see_leaves_them_alone"
SECRETS = "tests/unit/test_children.py::test_the_secrets_of_the_database_are_mounted_and_never_read_into_the_pod"
GRACE = "tests/unit/test_grace.py::test_each_part_of_the_policy_has_its_effect"
UP_STEP = "tests/unit/test_scaling.py::test_an_explicit_step_binds_from_zero_too"
DOWN_STEP = "tests/unit/test_scaling.py::test_steps_bound_the_shrinking"
WINDOWS = (
    "tests/operator/test_quota_windows.py::test_what_a_task_needs_is_granted_in_the_store_and_the_pool_grows_no_further"
)
FEEDBACK = "tests/operator/test_quota_feedback.py::"
QUOTA = "tests/operator/test_quota.py::"
RETENTION = POLICY + "test_retention"
COVERED = {
    "Database.dsnSecretRef.name": "tests/operator/test_blind.py::test_a_wrong_reference_is_named_with_its_remedy",
    "Database.dsnSecretRef.key": "tests/operator/test_blind.py::test_a_wrong_reference_is_named_with_its_remedy",
    "Database.directSecretRef.name": SECRETS,
    "Database.directSecretRef.key": SECRETS,
    "Database.adminSecretRef.name": "tests/operator/test_blind.py::test_the_schema_is_migrated_where_the_database_says_so",
    "Database.adminSecretRef.key": "tests/operator/test_blind.py::test_the_schema_is_migrated_where_the_database_says_so",
    "Database.maxWorkerConnections": "tests/operator/test_pool_connections.py::test_two_pools_share_the_connections_and_never_pass_them",
    "Database.pooler": "tests/operator/test_pooler.py::test_pools_are_sized_through_the_pooler",
    "Database.roles": "tests/operator/test_database_roles.py::test_the_pods_mount_the_pools_own_secret_and_nothing_else",
    "Database.roleRotation": "tests/unit/test_logins.py::test_a_login_of_its_age_is_replaced_by_the_other_one",
    "Database.migrations": "tests/operator/test_blind.py::test_the_schema_is_migrated_where_the_database_says_so",
    "Database.tickInterval": "tests/operator/test_scaling.py::test_a_task_in_an_empty_pool_wakes_it",
    "TaskQueue.databaseRef.name": "tests/operator/test_blind.py::test_mixed_databases_and_missing_queues_are_refused_with_what_to_do",
    "TaskQueue.visibilityTimeout": POLICY + "test_visibility_timeout",
    "TaskQueue.maxAge": POLICY + "test_max_age",
    "TaskQueue.maxRunTime": POLICY + "test_run_limits",
    "TaskQueue.maxTenure": POLICY + "test_run_limits",
    "TaskQueue.progressTimeout": POLICY + "test_run_limits",
    "TaskQueue.maxDeliveries": POLICY + "test_max_deliveries",
    "TaskQueue.maxHandBacks": POLICY + "test_max_hand_backs",
    "TaskQueue.maxSnoozes": POLICY + "test_max_snoozes",
    "TaskQueue.taskTypes[]": POLICY + "test_task_types",
    "TaskQueue.pausedTaskTypes[]": POLICY + "test_paused_task_types",
    "TaskQueue.suspendedTenants[]": POLICY + "test_suspended_tenants",
    "TaskQueue.ordering": POLICY + "test_ordering",
    "TaskQueue.retrySharePercent": POLICY + "test_retry_share_percent",
    "TaskQueue.wakeUp": POLICY + "test_wake_up",
    "TaskQueue.backoff.initial": POLICY + "test_backoff_initial",
    "TaskQueue.backoff.max": POLICY + "test_backoff_max",
    "TaskQueue.backoff.factorPercent": POLICY + "test_backoff_factor",
    "TaskQueue.backoff.maxElapsed": POLICY + "test_backoff_max_elapsed",
    "TaskQueue.priority.min": POLICY + "test_priority_range",
    "TaskQueue.priority.max": POLICY + "test_priority_range",
    "TaskQueue.priority.default": POLICY + "test_priority_range",
    "TaskQueue.priority.ageEvery": POLICY + "test_priority_age_every",
    "TaskQueue.admission.maxPayloadSize": POLICY + "test_admission_max_payload_size",
    "TaskQueue.admission.maxWaiting": POLICY + "test_admission_max_waiting",
    "TaskQueue.admission.maxWaitingPerTenant": POLICY + "test_admission_max_waiting_per_tenant",
    "TaskQueue.concurrency.tenants[].maxWaiting": POLICY + "test_concurrency_tenants_max_waiting",
    "TaskQueue.concurrency.max": POLICY + "test_concurrency_max",
    "TaskQueue.concurrency.perTenant": POLICY + "test_concurrency_of_tenants",
    "TaskQueue.concurrency.tenants[].name": POLICY + "test_concurrency_of_tenants",
    "TaskQueue.concurrency.tenants[].weight": POLICY + "test_concurrency_tenants_weight",
    "TaskQueue.concurrency.tenants[].max": POLICY + "test_concurrency_of_tenants",
    "TaskQueue.checkpoint.maxSize": POLICY + "test_checkpoint_max_size",
    "TaskQueue.checkpoint.maxPerSecond": "tests/worker/test_checkpoint_rate.py::test_the_policys_rate_bounds_the_checkpoints",
    "TaskQueue.retention.payload": RETENTION,
    "TaskQueue.retention.result": RETENTION,
    "TaskQueue.retention.checkpoint": RETENTION,
    "TaskQueue.retention.events": RETENTION,
    "TaskQueue.retention.deadLetters": RETENTION,
    "TaskQueue.retention.keys": RETENTION,
    "TaskQueue.deadLetter.owner": "tests/operator/test_deadletters.py::test_a_queue_without_an_owner_is_not_ready",
    "TaskQueue.deadLetter.runbookURL": POLICY + "test_dead_letter_owner_and_runbook",
    "TaskQueue.deadLetter.alert.count": ALERT,
    "TaskQueue.deadLetter.alert.growthPerMinute": ALERT,
    "TaskQueue.deadLetter.alert.age": ALERT,
    "TaskQueue.deadLetter.webhook.url": WEBHOOK,
    "TaskQueue.deadLetter.webhook.secretRef.name": WEBHOOK,
    "TaskQueue.deadLetter.webhook.secretRef.key": WEBHOOK,
    "TaskQueue.deletionPolicy": "tests/operator/test_deletion.py::test_the_policy_decides_what_becomes_of_the_tasks",
    "TaskQueue.paused": POLICY + "test_paused",
    "WorkerPool.queues[].name": CHILDREN,
    "WorkerPool.taskTypes[]": CHILDREN,
    "WorkerPool.tenants.only[]": CHILDREN,
    "WorkerPool.tenants.except[]": CHILDREN,
    "WorkerPool.app": CHILDREN,
    "WorkerPool.concurrency": CHILDREN,
    "WorkerPool.maxRunning": QUOTA + "test_max_running_is_enforced_by_the_store",
    "WorkerPool.replicas": "tests/operator/test_crds_apply.py::test_the_scale_subresource_answers_with_a_selector",
    "WorkerPool.template.metadata.labels": CHILDREN,
    "WorkerPool.template.metadata.annotations": CHILDREN,
    "WorkerPool.template.image": CHILDREN,
    "WorkerPool.template.imagePullPolicy": CHILDREN,
    "WorkerPool.template.imagePullSecrets[].name": CHILDREN,
    "WorkerPool.template.env[].name": CHILDREN,
    "WorkerPool.template.env[].value": CHILDREN,
    "WorkerPool.template.envFrom[]": CHILDREN,
    "WorkerPool.template.volumes[].name": CHILDREN,
    "WorkerPool.template.volumeMounts[].name": CHILDREN,
    "WorkerPool.template.volumeMounts[].mountPath": CHILDREN,
    "WorkerPool.template.resources.requests": CHILDREN,
    "WorkerPool.template.resources.limits": CHILDREN,
    "WorkerPool.scaling.mode": "tests/unit/test_scaling_fields.py::test_a_field_of_scaling_changes_the_size",
    "WorkerPool.scaling.min": "tests/unit/test_scaling_fields.py::test_a_field_of_scaling_changes_the_size",
    "WorkerPool.scaling.max": "tests/operator/test_scaling.py::test_a_burst_into_an_empty_pool_is_one_write",
    "WorkerPool.scaling.targetAge": "tests/operator/test_scaling.py::test_of_two_pools_of_equal_depth_the_older_work_gets_more",
    "WorkerPool.scaling.up.window": "tests/unit/test_scaling.py::test_an_up_window_waits_until_more_was_wanted_throughout",
    "WorkerPool.scaling.up.maxStepPercent": "tests/unit/test_scaling_fields.py::test_a_field_of_scaling_changes_the_size",
    "WorkerPool.scaling.up.maxStepPods": UP_STEP,
    "WorkerPool.scaling.down.window": "tests/unit/test_scaling_fields.py::test_a_field_of_scaling_changes_the_size",
    "WorkerPool.scaling.down.maxStepPercent": DOWN_STEP,
    "WorkerPool.scaling.down.maxStepPods": "tests/unit/test_scaling_fields.py::test_a_field_of_scaling_changes_the_size",
    "WorkerPool.scaling.toZeroAfter": "tests/operator/test_scaling.py::test_idle_goes_first_and_the_last_pod_after_its_window",
    "WorkerPool.providers[].name": "tests/unit/test_resources.py::test_a_pool_hands_its_wishes_to_the_decisions",
    "WorkerPool.providers[].quotaRef.name": QUOTA + "test_a_missing_quota_closes_the_pool_and_says_so",
    "WorkerPool.providers[].quotaRef.namespace": "tests/operator/test_quota_namespaces.py::test_namespaces_are_let_in_as_the_quota_says",
    "WorkerPool.providers[].perTask.concurrentCalls": QUOTA + "test_two_pools_share_by_weight_and_never_pass_the_quota",
    "WorkerPool.providers[].perTask.requests": WINDOWS,
    "WorkerPool.providers[].perTask.tokens": WINDOWS,
    "WorkerPool.drain.minGrace": GRACE,
    "WorkerPool.drain.maxGrace": GRACE,
    "WorkerPool.drain.headroomPercent": GRACE,
    "WorkerPool.drain.handBackMargin": CHILDREN,
    "WorkerPool.drain.preStop": CHILDREN,
    **dict.fromkeys(
        (
            "Database.networkPeers[].cidr",
            "Database.networkPeers[].port",
            "ProviderQuota.networkPeers[].cidr",
            "ProviderQuota.networkPeers[].port",
            "WorkerPool.isolation.egress[].cidr",
            "WorkerPool.isolation.egress[].port",
            "WorkerPool.isolation.networkPolicy",
        ),
        "tests/operator/test_network_policy.py::test_pods_may_reach_what_is_given_once_all_of_it_is",
    ),
    "WorkerPool.isolation.serviceAccountName": (
        "tests/unit/test_children.py::test_a_service_account_of_the_users_takes_the_place_of_the_pools_own"
    ),
    "WorkerPool.isolation.runtimeClassName": PLACED,
    "WorkerPool.isolation.placement.nodeSelector": PLACED,
    "WorkerPool.isolation.placement.tolerations[].key": PLACED,
    "WorkerPool.isolation.placement.tolerations[].operator": PLACED,
    "WorkerPool.isolation.placement.tolerations[].value": PLACED,
    "WorkerPool.isolation.placement.tolerations[].effect": PLACED,
    "WorkerPool.isolation.placement.tolerations[].tolerationSeconds": PLACED,
    "WorkerPool.isolation.placement.topologySpread": PLACED,
    "WorkerPool.disruption.maxUnavailable": NO_BUILD,
    "WorkerPool.rollout.maxSurge": NO_BUILD,
    "WorkerPool.rollout.maxUnavailable": NO_BUILD,
    "ProviderQuota.limits.concurrentCalls": QUOTA + "test_a_suspended_quota_stops_new_tasks_and_a_raised_one_lets_more",
    "ProviderQuota.limits.requests.limit": WINDOWS,
    "ProviderQuota.limits.requests.window": WINDOWS,
    "ProviderQuota.limits.tokens.limit": WINDOWS,
    "ProviderQuota.limits.tokens.window": WINDOWS,
    "ProviderQuota.databaseRef.name": "tests/operator/test_quota_windows.py::test_what_is_not_said_or_not_granted_here_closes_the_pool",
    "ProviderQuota.reservePercent": FEEDBACK + "test_what_is_kept_back_is_never_given",
    "ProviderQuota.adaptive.cutPercent": FEEDBACK + "test_the_store_keeps_to_what_the_quota_says_of_cuts",
    "ProviderQuota.adaptive.floorPercent": FEEDBACK + "test_the_store_keeps_to_what_the_quota_says_of_cuts",
    "ProviderQuota.adaptive.recoverPercentPerMinute": FEEDBACK + "test_the_store_keeps_to_what_the_quota_says_of_cuts",
    "ProviderQuota.suspended": QUOTA + "test_a_suspended_quota_stops_new_tasks_and_a_raised_one_lets_more",
    "ProviderQuota.shares.pools[].namespace": QUOTA + "test_two_pools_share_by_weight_and_never_pass_the_quota",
    "ProviderQuota.shares.pools[].name": QUOTA + "test_two_pools_share_by_weight_and_never_pass_the_quota",
    "ProviderQuota.shares.pools[].weight": QUOTA + "test_two_pools_share_by_weight_and_never_pass_the_quota",
    "ProviderQuota.allowedNamespaces.from": "tests/operator/test_quota_namespaces.py::test_namespaces_are_let_in_as_the_quota_says",
    "ProviderQuota.allowedNamespaces.selector.matchLabels": "tests/operator/test_quota_namespaces.py::test_namespaces_are_let_in_as_the_quota_says",
}


def leaves(schema: dict[str, Any], path: str) -> Iterator[str]:
    """Fields that hold a value: scalars, maps, and objects of a Pod's own type that declare nothing of their own."""
    if schema.get("properties"):
        for name, child in schema["properties"].items():
            yield from leaves(child, f"{path}.{name}")
    elif "items" in schema:
        yield from leaves(schema["items"], f"{path}[]")
    else:
        yield path


LEAVES = sorted(leaf for kind in KINDS for leaf in leaves(schema_of(kind.spec), kind.name))


@pytest.mark.parametrize("leaf", LEAVES)
def test_every_field_has_a_test_that_shows_its_effect(leaf):
    assert leaf in COVERED, "name the test that sees a change of this field"


def test_no_row_is_about_a_field_that_is_gone():
    assert set(COVERED) <= set(LEAVES)


@pytest.mark.parametrize("node", sorted(set(COVERED.values())))
def test_the_tests_named_exist(node):
    path, _, name = node.partition("::")
    text = (ROOT / path).read_text()
    assert re.search(rf"^\s*(async )?def {name}\(", text, re.MULTILINE)
