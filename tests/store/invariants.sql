-- What must hold in the store at any moment; each query answers with its violations and nothing else.

-- name: every task is in exactly one place
SELECT t.id, p.n FROM poolkeeper.task AS t
CROSS JOIN LATERAL (
    SELECT (SELECT count(*) FROM poolkeeper.ready AS r WHERE r.task_id = t.id)
         + (SELECT count(*) FROM poolkeeper.later AS r WHERE r.task_id = t.id)
         + (SELECT count(*) FROM poolkeeper.suspect AS r WHERE r.task_id = t.id)
         + (SELECT count(*) FROM poolkeeper.lease AS r WHERE r.task_id = t.id)
         + (SELECT count(*) FROM poolkeeper.dead AS r WHERE r.task_id = t.id)
         + (SELECT count(*) FROM poolkeeper.delivery AS r WHERE r.retention = 0 AND r.task_id = t.id AND r.next_state IN ('succeeded', 'failed', 'canceled'))
         + (SELECT count(*) FROM poolkeeper.event AS r WHERE r.retention = 0 AND r.task_id = t.id AND r.kind IN ('canceled', 'discarded')) AS n) AS p
WHERE p.n <> 1

-- name: nothing is placed without its body
SELECT x.task_id FROM (
    SELECT task_id FROM poolkeeper.ready UNION ALL SELECT task_id FROM poolkeeper.later UNION ALL SELECT task_id FROM poolkeeper.suspect
    UNION ALL SELECT task_id FROM poolkeeper.lease UNION ALL SELECT task_id FROM poolkeeper.dead UNION ALL SELECT task_id FROM poolkeeper.delivery
    UNION ALL SELECT task_id FROM poolkeeper.event UNION ALL SELECT task_id FROM poolkeeper.checkpoint UNION ALL SELECT task_id FROM poolkeeper.retention_note
    UNION ALL SELECT task_id FROM poolkeeper.task_key WHERE ended_at IS NULL) AS x
WHERE NOT EXISTS (SELECT FROM poolkeeper.task AS t WHERE t.id = x.task_id)

-- name: a key that knows an end has outlived its task
SELECT k.* FROM poolkeeper.task_key AS k
WHERE (k.ended_at IS NULL) <> (k.last_state IS NULL) OR k.last_state NOT IN ('succeeded', 'failed', 'canceled')
   OR (k.ended_at IS NOT NULL AND EXISTS (SELECT FROM poolkeeper.task AS t WHERE t.id = k.task_id))

-- name: nothing was erased of a task that has not ended
SELECT t.id, p.state FROM poolkeeper.task AS t CROSS JOIN LATERAL poolkeeper.present_state(t.id) AS p
WHERE (t.payload_erased_at IS NOT NULL OR t.result_erased_at IS NOT NULL) AND p.state NOT IN ('succeeded', 'failed', 'canceled')

-- name: no token repeats
SELECT x.token_hash FROM (SELECT token_hash FROM poolkeeper.delivery UNION ALL SELECT token_hash FROM poolkeeper.lease) AS x
GROUP BY x.token_hash HAVING count(*) > 1

-- name: deliveries of a task are numbered without gaps
SELECT x.task_id, array_agg(x.delivery ORDER BY x.delivery)
FROM (SELECT task_id, delivery FROM poolkeeper.delivery UNION ALL SELECT task_id, delivery FROM poolkeeper.lease) AS x
GROUP BY x.task_id HAVING (min(x.delivery), max(x.delivery), count(DISTINCT x.delivery)) <> (1, count(*), count(*))

-- name: each ended delivery has an outcome, a next state and times in order
SELECT d.* FROM poolkeeper.delivery AS d
WHERE d.outcome IS NULL OR d.ended_at < d.claimed_at OR d.started_at < d.claimed_at
   OR d.next_state NOT IN ('ready', 'scheduled', 'waiting', 'succeeded', 'failed', 'canceled', 'dead')

-- name: state versions are gapless
SELECT h.task_id, array_agg(h.state_version ORDER BY h.state_version) FROM poolkeeper.history AS h WHERE h.state IS NOT NULL
GROUP BY h.task_id HAVING (min(h.state_version), max(h.state_version), count(DISTINCT h.state_version)) <> (1, count(*), count(*))

-- name: history replays to the present state
SELECT t.id, last.state, last.state_version, p.state, p.state_version
FROM poolkeeper.task AS t
CROSS JOIN LATERAL (SELECT h.state, h.state_version FROM poolkeeper.history AS h WHERE h.task_id = t.id AND h.state IS NOT NULL
                    ORDER BY h.state_version DESC LIMIT 1) AS last
LEFT JOIN LATERAL poolkeeper.present_state(t.id) AS p ON true
WHERE (last.state, last.state_version) IS DISTINCT FROM (p.state, p.state_version)

-- name: only the arrows of the state machine were taken
SELECT x.* FROM (
    SELECT h.task_id, h.state_version, lag(h.state) OVER w AS before, h.state AS after FROM poolkeeper.history AS h WHERE h.state IS NOT NULL
    WINDOW w AS (PARTITION BY h.task_id ORDER BY h.state_version)) AS x
WHERE NOT CASE coalesce(x.before, 'nothing')
    WHEN 'nothing' THEN x.after IN ('ready', 'scheduled')
    WHEN 'scheduled' THEN x.after IN ('ready', 'canceled', 'dead')
    WHEN 'waiting' THEN x.after IN ('ready', 'canceled', 'dead')
    WHEN 'ready' THEN x.after IN ('leased', 'running', 'canceled', 'dead')
    WHEN 'leased' THEN x.after IN ('running', 'ready', 'canceled', 'dead')
    WHEN 'running' THEN x.after IN ('ready', 'scheduled', 'waiting', 'succeeded', 'failed', 'canceled', 'dead')
    WHEN 'dead' THEN x.after IN ('ready', 'canceled')
    ELSE false END

-- name: counters add up to the history since the last requeue
WITH held AS (
    SELECT task_id, queue_id, delivery, spent, failures, expiries, hand_backs, snoozes, 0 AS open FROM poolkeeper.ready
    UNION ALL SELECT task_id, queue_id, delivery, spent, failures, expiries, hand_backs, snoozes, 0 FROM poolkeeper.later
    UNION ALL SELECT task_id, queue_id, delivery, spent, failures, expiries, hand_backs, snoozes, 0 FROM poolkeeper.suspect
    UNION ALL SELECT task_id, queue_id, delivery, spent, failures, expiries, hand_backs, snoozes, 1 FROM poolkeeper.lease
    UNION ALL SELECT task_id, queue_id, delivery, spent, failures, expiries, hand_backs, snoozes, 0 FROM poolkeeper.dead
)
SELECT h.*, c.* FROM held AS h
JOIN poolkeeper.queue AS q ON q.id = h.queue_id
CROSS JOIN LATERAL (
    SELECT count(*) AS deliveries, count(*) FILTER (WHERE d.outcome IN ('failed', 'dead')) AS failures,
           count(*) FILTER (WHERE d.outcome = 'expired') AS expiries,
           count(*) FILTER (WHERE d.outcome = 'expired' AND d.reason = 'beside_others') AS unproven,
           count(*) FILTER (WHERE d.outcome IN ('handed_back', 'returned') OR d.reason = 'outage') AS hand_backs,
           count(*) FILTER (WHERE d.outcome = 'snoozed') AS snoozes
    FROM poolkeeper.delivery AS d
    WHERE d.retention = 0 AND d.task_id = h.task_id
      AND d.state_version > coalesce((SELECT max(e.state_version) FROM poolkeeper.event AS e WHERE e.retention = 0 AND e.task_id = h.task_id AND e.kind = 'requeued'), 0)) AS c
WHERE h.delivery <> (SELECT count(*) FROM poolkeeper.delivery AS d WHERE d.retention = 0 AND d.task_id = h.task_id) + h.open
   OR (h.failures, h.expiries, h.hand_backs, h.snoozes) IS DISTINCT FROM (c.failures, c.expiries, c.hand_backs, c.snoozes)
   OR h.spent <> c.deliveries + h.open - c.snoozes - least(c.hand_backs, q.max_hand_backs) - c.unproven

-- name: the counter of lease expiries counts each expired delivery
SELECT c.queue_id, c.lease_expiries FROM poolkeeper.queue_count AS c
WHERE c.lease_expiries < (SELECT count(*) FROM poolkeeper.delivery AS d WHERE d.queue_id = c.queue_id AND d.outcome = 'expired')

-- name: a dead letter has a reason that the list explains
SELECT d.task_id FROM poolkeeper.dead AS d LEFT JOIN poolkeeper.reason AS r ON r.reason = d.reason WHERE r.reason IS NULL

-- name: an ended task keeps no cursor
SELECT c.task_id FROM poolkeeper.checkpoint AS c CROSS JOIN LATERAL poolkeeper.present_state(c.task_id) AS p
WHERE p.state IN ('succeeded', 'failed', 'canceled')

-- name: a lane that could be served is open where tenants are bounded
SELECT DISTINCT r.queue_id, r.lane FROM poolkeeper.ready AS r JOIN poolkeeper.queue AS q ON q.id = r.queue_id AND q.lanes_kept
WHERE poolkeeper.lane_room(r.queue_id, r.lane) > 0
  AND NOT EXISTS (SELECT FROM poolkeeper.opening AS o WHERE o.queue_id = r.queue_id AND o.lane = r.lane)
