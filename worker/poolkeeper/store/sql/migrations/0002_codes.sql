-- Codes and reasons of the contract. The Python enums in poolkeeper/codes.py list the same, compared by a test.

INSERT INTO poolkeeper.instance (digest_inner, digest_outer)
SELECT decode(string_agg(lpad(to_hex(b # 54), 2, '0'), '' ORDER BY i), 'hex'),
       decode(string_agg(lpad(to_hex(b # 92), 2, '0'), '' ORDER BY i), 'hex')
FROM (SELECT i, CASE WHEN i < 32 THEN get_byte(k.key, i) ELSE 0 END AS b
      FROM (SELECT uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) AS key) AS k,
           generate_series(0, 63) AS i) AS bytes;

INSERT INTO poolkeeper.code (code, class, sentence) VALUES
    ('queue_paused', 'Refused', 'the queue is paused; resume it or submit later'),
    ('payload_too_large', 'Refused', 'the payload is larger than admission.maxPayloadSize; store it elsewhere and submit a reference'),
    ('payload_invalid', 'Refused', 'the payload is not a JSON value that can be read back'),
    ('checkpoint_too_large', 'Refused', 'the checkpoint is larger than checkpoint.maxSize; the previous one stays'),
    ('max_age_passed', 'Refused', 'the task would be older than its max_age before it could start'),
    ('unknown_type', 'Refused', 'the queue does not take tasks of this type; add it to taskTypes'),
    ('key_conflict', 'Conflict', 'the idempotency key was used with another payload'),
    ('key_in_flight', 'Conflict', 'another transaction is using the idempotency key; try again'),
    ('queue_owned', 'Conflict', 'the queue belongs to another cluster or namespace; annotate to adopt it'),
    ('already_ended', 'Conflict', 'the task has ended'),
    ('not_dead', 'Conflict', 'the task is not a dead letter'),
    ('stale_version', 'Conflict', 'the task has changed since it was looked at; look again'),
    ('stale_token', 'LeaseLost', 'another delivery of the task has begun'),
    ('lease_expired', 'LeaseLost', 'the lease was not renewed in time'),
    ('canceled', 'LeaseLost', 'the task was canceled'),
    ('unknown_task', 'NotFound', 'there is no such task'),
    ('unknown_queue', 'NotFound', 'there is no such queue; apply it first'),
    ('role_not_allowed', 'Forbidden', 'this login may not do that; ask for a row in poolkeeper.access'),
    ('database_unreachable', 'Unavailable', 'the database cannot be reached'),
    ('database_read_only', 'Unavailable', 'the database is read-only'),
    ('connections_exhausted', 'Unavailable', 'the database takes no more connections'),
    ('schema_too_old', 'Unavailable', 'the schema is older than this program; run: poolkeeper migrate --apply'),
    ('schema_too_new', 'Unavailable', 'the schema is newer than this program; upgrade poolkeeper'),
    ('dsn_missing', 'Misconfigured', 'no database is named; set POOLKEEPER_DSN or POOLKEEPER_DSN_FILE'),
    ('dsn_invalid', 'Misconfigured', 'the DSN cannot be parsed'),
    ('app_not_importable', 'Misconfigured', 'the app cannot be imported'),
    ('duplicate_type', 'Misconfigured', 'two handlers have the same task type'),
    ('setting_invalid', 'Misconfigured', 'a setting of the worker or a file has a value that cannot be used; the message names it'),
    ('crd_missing', 'Misconfigured', 'a custom resource definition is missing or old; apply crds/'),
    ('right_missing', 'Misconfigured', 'a right is missing in RBAC');

INSERT INTO poolkeeper.reason (reason, sentence, action) VALUES
    ('deliveries_exhausted', 'every delivery of its budget was spent', 'read the last error, mend the cause, then requeue'),
    ('failures_exhausted', 'it kept failing for longer than backoff.maxElapsed', 'read the last error, mend the cause, then requeue'),
    ('snoozes_exhausted', 'it snoozed more often than maxSnoozes', 'look for a condition that never comes true, then requeue or discard'),
    ('permanent_error', 'the handler declared that no retry can help', 'mend the cause, then requeue, or discard'),
    ('max_age', 'it grew older than its max_age before it could be done', 'requeue if it is still wanted, else discard'),
    ('handler_error', 'the handler raised an error', 'none: it is retried'),
    ('process_died', 'the process that ran it died', 'none: it is run again, alone'),
    ('lease_expired', 'its worker did not renew the lease', 'none: it is run again, alone'),
    ('answer_lost', 'the worker never received the answer of its claim', 'none: it is claimable again'),
    ('drain', 'its worker drained and handed it back', 'none: it is claimable again'),
    ('rejected', 'the handler declared a final business failure', 'none: this is an outcome'),
    ('snoozed', 'the handler asked to be called later', 'none: it wakes by itself'),
    ('retry_after', 'the handler asked for a retry at a given time', 'none: it is retried'),
    ('canceled_by', 'a person or program canceled it', 'none'),
    ('discarded', 'a person discarded the dead letter', 'none'),
    ('requeued', 'a person gave the dead letter a fresh budget', 'none');
