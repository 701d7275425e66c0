-- Reading. The views are the owner's; callers read through functions that check what they may see (Q51).

-- The one log (Q2): accepted, claimed, started, ended, and what people did, in the order of their versions. It names the
-- retention class, the only one yet, because the keys of delivery and event begin with it.
CREATE OR REPLACE VIEW poolkeeper.history AS
    SELECT t.id AS task_id, t.accepted_at AS at, 0::bigint AS no, 'accepted' AS what, NULL::integer AS delivery, NULL::text AS outcome,
           NULL::text AS reason, NULL::text AS actor, NULL::text AS error_class, NULL::text AS error, NULL::text AS build, NULL::uuid AS session_id,
           1 AS state_version, CASE WHEN t.run_at > t.accepted_at THEN 'scheduled' ELSE 'ready' END AS state
    FROM poolkeeper.task AS t
    UNION ALL
    -- claimed for a free slot is started in the same moment and one step; claimed ahead of a slot, two
    SELECT d.task_id, d.claimed_at, d.no, 'claimed', d.delivery, NULL, NULL, NULL, NULL, NULL, d.build, d.session_id,
           d.state_version - CASE WHEN d.started_at IS NULL THEN 1 ELSE 2 END, 'leased'
    FROM poolkeeper.delivery AS d WHERE d.retention = 0 AND d.started_at IS DISTINCT FROM d.claimed_at
    UNION ALL
    SELECT d.task_id, d.started_at, d.no, 'started', d.delivery, NULL, NULL, NULL, NULL, NULL, d.build, d.session_id, d.state_version - 1, 'running'
    FROM poolkeeper.delivery AS d WHERE d.retention = 0 AND d.started_at IS NOT NULL
    UNION ALL
    SELECT d.task_id, d.ended_at, d.no, 'ended', d.delivery, d.outcome, d.reason, NULL, d.error_class, d.error, d.build, d.session_id,
           d.state_version, d.next_state
    FROM poolkeeper.delivery AS d WHERE d.retention = 0
    UNION ALL
    SELECT l.task_id, l.claimed_at, 9223372036854775807, 'claimed', l.delivery, NULL, NULL, NULL, NULL, NULL, NULL, l.session_id,
           l.state_version - CASE WHEN l.started_at IS NULL THEN 0 ELSE 1 END, 'leased'
    FROM poolkeeper.lease AS l WHERE l.started_at IS DISTINCT FROM l.claimed_at
    UNION ALL
    SELECT l.task_id, l.started_at, 9223372036854775807, 'started', l.delivery, NULL, NULL, NULL, NULL, NULL, NULL, l.session_id,
           l.state_version, 'running'
    FROM poolkeeper.lease AS l WHERE l.started_at IS NOT NULL
    UNION ALL
    SELECT e.task_id, e.at, e.no, e.kind, NULL, NULL, CASE WHEN e.kind <> 'explained' THEN e.reason END, e.actor, NULL,
           CASE WHEN e.kind = 'explained' THEN e.reason END, NULL, NULL, e.state_version,
           CASE e.kind WHEN 'woke' THEN 'ready' WHEN 'canceled' THEN 'canceled' WHEN 'requeued' THEN 'ready' WHEN 'discarded' THEN 'canceled'
                       WHEN 'died' THEN 'dead' END
    FROM poolkeeper.event AS e WHERE e.retention = 0
    UNION ALL  -- after its end, and no step of it (Q52)
    SELECT t.id, x.at, NULL, 'erased', NULL, NULL, x.what, 'poolkeeper', NULL, NULL, NULL, NULL, NULL, NULL
    FROM poolkeeper.task AS t
    CROSS JOIN LATERAL (VALUES (t.payload_erased_at, 'payload'), (t.result_erased_at, 'result')) AS x (at, what) WHERE x.at IS NOT NULL;

CREATE OR REPLACE VIEW poolkeeper.tasks AS
    SELECT t.id, q.namespace || '/' || q.name AS queue, t.type, t.tenant, t.priority, p.state, p.reason, p.state_version, t.accepted_at, t.run_at,
           t.expires_at, t.payload, p.result, t.labels, t.payload_erased_at, t.result_erased_at, t.ordering_key
    FROM poolkeeper.task AS t
    JOIN poolkeeper.queue AS q ON q.id = t.queue_id
    CROSS JOIN LATERAL poolkeeper.present_state(t.id) AS p;

-- erased: what retention has taken of it; payload, result or checkpoint is then null and was not.
CREATE OR REPLACE FUNCTION poolkeeper.task_view(_task_id uuid)
RETURNS TABLE (id uuid, queue text, type text, tenant text, priority integer, state text, reason text, state_version integer,
               accepted_at timestamptz, run_at timestamptz, expires_at timestamptz, payload jsonb, result jsonb, labels jsonb,
               checkpoint jsonb, deliveries integer, cancel_requested boolean, erased text[], ordering_key text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
    SELECT v.id, v.queue, v.type, v.tenant, v.priority::integer, v.state,
           CASE WHEN v.state = 'ready' AND v.reason IS NULL AND NOT poolkeeper.somebody_can(me.queue_id, v.type, v.tenant) THEN 'no_capable_worker' ELSE v.reason END,
           v.state_version, v.accepted_at, v.run_at, v.expires_at, v.payload,
           v.result, v.labels, c.value,
           (SELECT count(*)::integer FROM poolkeeper.delivery AS d WHERE d.retention = 0 AND d.task_id = v.id) + (l.task_id IS NOT NULL)::integer,
           l.cancel_by IS NOT NULL,
           array_remove(ARRAY[CASE WHEN v.payload_erased_at IS NOT NULL THEN 'payload' END, CASE WHEN v.result_erased_at IS NOT NULL THEN 'result' END,
                              (SELECT 'checkpoint' FROM poolkeeper.dead AS x WHERE x.task_id = v.id AND x.checkpoint_erased)], NULL),
           v.ordering_key
    FROM (SELECT t.id, t.queue_id FROM poolkeeper.visible_task(_task_id) AS t OFFSET 0) AS me
    JOIN poolkeeper.tasks AS v ON v.id = me.id
    LEFT JOIN poolkeeper.checkpoint AS c ON c.task_id = v.id
    LEFT JOIN poolkeeper.lease AS l ON l.task_id = v.id
$$;

CREATE OR REPLACE FUNCTION poolkeeper.timeline(_task_id uuid)
RETURNS TABLE (at timestamptz, what text, delivery integer, outcome text, reason text, actor text, error_class text, error text, build text,
               session_id uuid, state_version integer, state text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
    SELECT h.at, h.what, h.delivery, h.outcome, h.reason, h.actor, h.error_class, h.error, h.build, h.session_id, h.state_version, h.state
    FROM poolkeeper.history AS h
    WHERE h.task_id = (poolkeeper.visible_task(_task_id)).id
    ORDER BY h.state_version, h.at, h.no  -- what changes no state (a cancel that was asked for) stands where it happened
$$;

CREATE OR REPLACE FUNCTION poolkeeper.dead_letters(_queue text DEFAULT NULL, _most integer DEFAULT 100)
RETURNS TABLE (task_id uuid, queue text, type text, tenant text, died_at timestamptz, reason text, sentence text, action text, error_class text,
               error text, build text, deliveries integer, spent integer, failures integer, expiries integer, hand_backs integer, snoozes integer,
               state_version integer, payload jsonb, checkpoint jsonb, owner text, runbook text)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _me poolkeeper.access := poolkeeper.caller();  -- first: a plan may begin with what has no rows, and ask nobody
BEGIN RETURN QUERY
    SELECT d.task_id, q.namespace || '/' || q.name, t.type, t.tenant, d.died_at, d.reason, r.sentence, r.action, d.error_class, d.error, d.build,
           d.delivery, d.spent::integer, d.failures::integer, d.expiries::integer, d.hand_backs::integer, d.snoozes::integer, d.state_version,
           t.payload, c.value, q.dead_letter_owner, q.dead_letter_runbook
    FROM poolkeeper.queue AS q
    CROSS JOIN LATERAL (SELECT k.* FROM poolkeeper.dead AS k WHERE k.queue_id = q.id ORDER BY k.died_at DESC LIMIT least(greatest(_most, 1), 10000)) AS d
    JOIN poolkeeper.task AS t ON t.id = d.task_id
    JOIN poolkeeper.reason AS r ON r.reason = d.reason
    LEFT JOIN poolkeeper.checkpoint AS c ON c.task_id = d.task_id
    WHERE (_queue IS NULL OR q.namespace || '/' || q.name = poolkeeper.queue_path(_queue))
      AND poolkeeper.may_see(_me, q.namespace || '/' || q.name, t.tenant)
    ORDER BY d.died_at DESC LIMIT least(greatest(_most, 1), 10000);
END $$;
