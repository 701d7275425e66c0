"""Stable codes and reasons of the contract: one list for SQL, Python and the command line.

The look-up tables ``poolkeeper.code`` and ``poolkeeper.reason`` hold the same lists; a test compares them.
"""

from enum import StrEnum


class Code(StrEnum):
    """Why something was refused or impossible (contract 2)."""

    QUEUE_PAUSED = "queue_paused"
    QUEUE_LIMIT = "queue_limit"
    TENANT_QUEUE_LIMIT = "tenant_queue_limit"
    TENANT_SUSPENDED = "tenant_suspended"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    PAYLOAD_INVALID = "payload_invalid"
    TYPE_INVALID = "type_invalid"
    TENANT_INVALID = "tenant_invalid"
    KEY_INVALID = "key_invalid"
    LABELS_INVALID = "labels_invalid"
    OPTION_INVALID = "option_invalid"
    NAME_INVALID = "name_invalid"
    CHECKPOINT_TOO_LARGE = "checkpoint_too_large"
    MAX_AGE_PASSED = "max_age_passed"
    UNKNOWN_TYPE = "unknown_type"
    KEY_CONFLICT = "key_conflict"
    KEY_IN_FLIGHT = "key_in_flight"
    QUEUE_OWNED = "queue_owned"
    ALREADY_ENDED = "already_ended"
    NOT_DEAD = "not_dead"
    STALE_VERSION = "stale_version"
    NOT_LEADING = "not_leading"
    STALE_TOKEN = "stale_token"  # noqa: S105 - a code, not a token
    LEASE_EXPIRED = "lease_expired"
    CANCELED = "canceled"
    UNKNOWN_TASK = "unknown_task"
    UNKNOWN_QUEUE = "unknown_queue"
    UNKNOWN_POOL = "unknown_pool"
    ROLE_NOT_ALLOWED = "role_not_allowed"
    DATABASE_UNREACHABLE = "database_unreachable"
    DATABASE_READ_ONLY = "database_read_only"
    DATABASE_BUSY = "database_busy"
    CONNECTIONS_EXHAUSTED = "connections_exhausted"
    SCHEMA_TOO_OLD = "schema_too_old"
    SCHEMA_TOO_NEW = "schema_too_new"
    CLUSTER_UNREACHABLE = "cluster_unreachable"
    DSN_MISSING = "dsn_missing"
    DSN_INVALID = "dsn_invalid"
    LOGIN_REFUSED = "login_refused"
    APP_NOT_IMPORTABLE = "app_not_importable"
    DUPLICATE_TYPE = "duplicate_type"
    SETTING_INVALID = "setting_invalid"
    CRD_MISSING = "crd_missing"
    RIGHT_MISSING = "right_missing"


class Reason(StrEnum):
    """Why a delivery or a task ended as it did (Q3)."""

    DELIVERIES_EXHAUSTED = "deliveries_exhausted"
    FAILURES_EXHAUSTED = "failures_exhausted"
    SNOOZES_EXHAUSTED = "snoozes_exhausted"
    PERMANENT_ERROR = "permanent_error"
    MAX_AGE = "max_age"
    HANDLER_ERROR = "handler_error"
    PROCESS_DIED = "process_died"
    LEASE_EXPIRED = "lease_expired"
    OUTAGE = "outage"
    BESIDE_OTHERS = "beside_others"
    ANSWER_LOST = "answer_lost"
    DRAIN = "drain"
    REJECTED = "rejected"
    SNOOZED = "snoozed"
    RETRY_AFTER = "retry_after"
    CANCELED_BY = "canceled_by"
    DISCARDED = "discarded"
    REQUEUED = "requeued"


ALREADY_DONE = "already_done"
"""The answer to a settle that was repeated after a lost answer: not an error (Q19)."""

IN_TRANSACTION = "in_transaction"
"""The answer to a settle whose lease is held by a transaction of the handler's own: ask again when that has ended (Q18)."""
