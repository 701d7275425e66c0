-- What `verify` reads, as the owner of the installation, after the story has ended. One row per line of the answer.

-- name: tasks
SELECT t.id::text, k.key, t.type, p.state, p.reason, t.run_at
FROM poolkeeper.task AS t
JOIN poolkeeper.queue AS q ON q.id = t.queue_id
LEFT JOIN poolkeeper.task_key AS k ON k.task_id = t.id
CROSS JOIN LATERAL poolkeeper.present_state(t.id) AS p
WHERE q.namespace || '/' || q.name = %(queue)s
ORDER BY t.id;

-- name: deliveries
SELECT d.task_id::text AS task, d.delivery AS number, d.session_id::text AS session, d.claimed_at AS claimed, d.started_at AS started,
       d.ended_at AS ended, d.outcome, d.reason, d.error_class AS error
FROM poolkeeper.delivery AS d
JOIN poolkeeper.queue AS q ON q.id = d.queue_id
WHERE q.namespace || '/' || q.name = %(queue)s
ORDER BY d.task_id, d.delivery;

-- name: sessions
SELECT s.id::text, s.info ->> 'pod_name' AS pod, s.concurrency AS slots, s.registered_at AS began
FROM poolkeeper.session AS s
JOIN poolkeeper.pool AS p ON p.id = s.pool_id
WHERE p.name = %(pool)s
ORDER BY s.registered_at;

-- name: decisions
SELECT d.at, d.decision
FROM poolkeeper.decision AS d
JOIN poolkeeper.pool AS p ON p.id = d.pool_id
WHERE p.name = %(pool)s
ORDER BY d.no;
