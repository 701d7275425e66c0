-- What has ended goes by its age, by the policy of its queue (Q52): part of poolkeeper.maintain, page by page. What has not
-- ended is never touched, whatever its age.
--
-- No index is kept on the end of a task, since settles would pay for it. Ids rise with the time of acceptance, so a walk
-- goes over the tasks by their ids, once, behind the shortest retention; what it cannot remove yet gets a note, by whose
-- time it is found again when it may be due. So a page costs what it removes and what grew old since the last one, never
-- what is kept. Locks: installation (SKIP LOCKED: one pass works at a time), dead (SKIP LOCKED), task (SKIP LOCKED), delivery,
-- key; sessions (SKIP LOCKED).

-- When and how a task ended: by the row that says so, and only if no table holds it as anything else. An end is for ever.
CREATE OR REPLACE FUNCTION poolkeeper.ending_of(_task_id uuid) RETURNS TABLE (ended_at timestamptz, state text)
LANGUAGE sql STABLE
AS $$
    SELECT e.at, e.state FROM (
        (SELECT d.ended_at AS at, d.next_state AS state FROM poolkeeper.delivery AS d
         WHERE d.retention = 0 AND d.task_id = _task_id AND d.next_state IN ('succeeded', 'failed', 'canceled'))
        UNION ALL
        (SELECT v.at, 'canceled' FROM poolkeeper.event AS v
         WHERE v.retention = 0 AND v.task_id = _task_id AND v.kind IN ('canceled', 'discarded'))) AS e
    WHERE (SELECT r.task_id FROM poolkeeper.ready AS r WHERE r.task_id = _task_id) IS NULL
      AND (SELECT r.task_id FROM poolkeeper.later AS r WHERE r.task_id = _task_id) IS NULL
      AND (SELECT r.task_id FROM poolkeeper.ordered AS r WHERE r.task_id = _task_id) IS NULL
      AND (SELECT r.task_id FROM poolkeeper.suspect AS r WHERE r.task_id = _task_id) IS NULL
      AND (SELECT r.task_id FROM poolkeeper.lease AS r WHERE r.task_id = _task_id) IS NULL
      AND (SELECT r.task_id FROM poolkeeper.dead AS r WHERE r.task_id = _task_id) IS NULL
    LIMIT 1
$$;

CREATE OR REPLACE FUNCTION poolkeeper.retention_of(_queue poolkeeper.queue, _kind text) RETURNS interval
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE _kind WHEN 'payload' THEN (_queue).retention_payload WHEN 'result' THEN (_queue).retention_result
                      WHEN 'events' THEN (_queue).retention_events END
$$;

-- The tasks that the walk of this kind comes by next, and moves it on. A task is looked at some time after its shortest
-- possible end (an eighth of the retention, an hour at most), so that most have ended by then and need no note. Once in 30
-- days the walk begins anew, for what was committed long after its id was made. Index: task_pkey.
CREATE OR REPLACE FUNCTION poolkeeper.walk_on(_kind text, _most integer, _now timestamptz) RETURNS uuid[]
LANGUAGE plpgsql
AS $$
DECLARE
    _walk  poolkeeper.retention_walk;
    _least interval := (SELECT min(poolkeeper.retention_of(q, _kind)) FROM poolkeeper.queue AS q);
    _ids   uuid[];
BEGIN
    INSERT INTO poolkeeper.retention_walk (kind, began_at) VALUES (_kind, _now) ON CONFLICT DO NOTHING;
    SELECT w.* INTO _walk FROM poolkeeper.retention_walk AS w WHERE w.kind = _kind;
    _ids := ARRAY(SELECT t.id FROM poolkeeper.task AS t
                  WHERE t.id > _walk.task_id AND t.id < poolkeeper.id_floor(_now - _least - least(interval '1 hour', _least / 8))
                  ORDER BY t.id LIMIT _most);
    IF cardinality(_ids) > 0 THEN
        UPDATE poolkeeper.retention_walk AS w SET task_id = _ids[cardinality(_ids)] WHERE w.kind = _kind;
    ELSIF _walk.began_at < _now - interval '30 days' THEN
        UPDATE poolkeeper.retention_walk AS w SET task_id = DEFAULT, began_at = _now WHERE w.kind = _kind;
    END IF;
    RETURN _ids;
END $$;

-- One page of one kind, payload, result or events: what the walk comes by and what is noted and may be due. Answers which
-- of them have ended long enough ago, locked, and whether more wait. Of a task whose queue is gone nothing is kept.
-- Indexes: retention_note_due, task_pkey.
CREATE OR REPLACE FUNCTION poolkeeper.take_due(_kind text, _most integer, _now timestamptz, OUT ids uuid[], OUT more boolean)
LANGUAGE plpgsql
AS $$
DECLARE
    _noted uuid[] := ARRAY(
        SELECT n.task_id FROM poolkeeper.queue AS q CROSS JOIN LATERAL (
            SELECT k.task_id FROM poolkeeper.retention_note AS k
            WHERE k.queue_id = q.id AND k.kind = _kind AND k.since <= _now - poolkeeper.retention_of(q, _kind)
            ORDER BY k.since LIMIT _most) AS n LIMIT _most);
    _fresh uuid[] := poolkeeper.walk_on(_kind, _most, _now);
    _kept  uuid[];
    _since timestamptz[];
    _homes integer[];
    _due   uuid[];
BEGIN
    SELECT array_agg(x.id) FILTER (WHERE x.due), array_agg(x.id), array_agg(x.since), array_agg(x.queue_id)
    INTO _due, _kept, _since, _homes
    FROM (
        SELECT t.id, t.queue_id, coalesce(e.ended_at, _now) AS since,
               coalesce(e.ended_at <= _now - coalesce(q.retention, interval '0'), false) AS due
        FROM (SELECT unnest(_noted) UNION SELECT unnest(_fresh)) AS u (id)
        CROSS JOIN LATERAL (
            SELECT k.id, k.queue_id FROM poolkeeper.task AS k
            WHERE k.id = u.id AND (_kind <> 'payload' OR k.payload_erased_at IS NULL) AND (_kind <> 'result' OR k.result_erased_at IS NULL)
            OFFSET 0) AS t
        LEFT JOIN LATERAL (SELECT poolkeeper.retention_of(k, _kind) AS retention FROM poolkeeper.queue AS k WHERE k.id = t.queue_id OFFSET 0) AS q ON true
        LEFT JOIN LATERAL (SELECT o.ended_at FROM poolkeeper.ending_of(t.id) AS o OFFSET 0) AS e ON true
    ) AS x;
    ids := ARRAY(SELECT t.id FROM poolkeeper.task AS t WHERE t.id = ANY (_due) ORDER BY t.id FOR UPDATE SKIP LOCKED);
    DELETE FROM poolkeeper.retention_note AS n WHERE n.kind = _kind AND n.task_id = ANY (_noted);
    INSERT INTO poolkeeper.retention_note (kind, task_id, queue_id, since)
    SELECT _kind, k.id, k.queue_id, k.since FROM unnest(_kept, _homes, _since) AS k (id, queue_id, since)
    WHERE k.id NOT IN (SELECT unnest(ids))
    ON CONFLICT (task_id, kind) DO UPDATE SET since = EXCLUDED.since;
    more := cardinality(_fresh) = _most OR (cardinality(_noted) = _most AND cardinality(ids) > 0);
END $$;

-- Removes ended tasks with their history. Their keys stay, and learn how the task ended (Q6). Locks: the tasks are the
-- caller's; then delivery, key. Indexes: primary keys.
CREATE OR REPLACE FUNCTION poolkeeper.forget_ended(_ids uuid[], _now timestamptz) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    _ends poolkeeper.task_key[] := ARRAY(  -- before their history goes
        SELECT ROW(t.tenant, t.queue_id, t.key, t.id, '', _now, e.ended_at, e.state)::poolkeeper.task_key
        FROM poolkeeper.task AS t CROSS JOIN LATERAL poolkeeper.ending_of(t.id) AS e WHERE t.id = ANY (_ids) AND t.key IS NOT NULL
        ORDER BY t.tenant COLLATE "C", t.key COLLATE "C");
    _n    bigint;
BEGIN
    DELETE FROM poolkeeper.delivery AS d WHERE d.retention = 0 AND d.task_id = ANY (_ids);
    DELETE FROM poolkeeper.event AS e WHERE e.retention = 0 AND e.task_id = ANY (_ids);
    DELETE FROM poolkeeper.checkpoint AS c WHERE c.task_id = ANY (_ids);
    DELETE FROM poolkeeper.retention_note AS n WHERE n.task_id = ANY (_ids);
    DELETE FROM poolkeeper.expiry AS x WHERE x.task_id = ANY (_ids);
    DELETE FROM poolkeeper.task AS t WHERE t.id = ANY (_ids);
    GET DIAGNOSTICS _n = ROW_COUNT;
    UPDATE poolkeeper.task_key AS k SET ended_at = e.ended_at, last_state = e.last_state
    FROM unnest(_ends) AS e WHERE k.tenant = e.tenant AND k.queue_id = e.queue_id AND k.key = e.key AND k.task_id = e.task_id;
    RETURN _n;
END $$;

-- Empties the payloads of ended tasks; repeats of their submits are still known by the digest of their keys (Q6).
CREATE OR REPLACE FUNCTION poolkeeper.erase_payloads(_ids uuid[], _now timestamptz) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    _n bigint;
BEGIN
    UPDATE poolkeeper.task AS t SET payload = 'null', payload_erased_at = _now WHERE t.id = ANY (_ids);
    GET DIAGNOSTICS _n = ROW_COUNT;
    RETURN _n;
END $$;

-- Empties the results of ended tasks.
CREATE OR REPLACE FUNCTION poolkeeper.erase_results(_ids uuid[], _now timestamptz) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    _had uuid[];
BEGIN
    WITH emptied AS (
        UPDATE poolkeeper.delivery AS d SET result = NULL WHERE d.retention = 0 AND d.task_id = ANY (_ids) AND d.result IS NOT NULL
        RETURNING d.task_id
    )
    SELECT array_agg(e.task_id) INTO _had FROM emptied AS e;
    UPDATE poolkeeper.task AS t SET result_erased_at = _now WHERE t.id = ANY (_had);
    RETURN coalesce(cardinality(_had), 0);
END $$;

-- Arrow: dead -> canceled, for a dead letter that nobody looked at: recorded as discarded by poolkeeper, so that its history
-- says so until that goes too. Index: dead_queue.
CREATE OR REPLACE FUNCTION poolkeeper.discard_old(_most integer, _now timestamptz) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    _ids uuid[];
BEGIN
    WITH gone AS (
        DELETE FROM poolkeeper.dead AS d WHERE d.ctid = ANY (ARRAY(
            SELECT o.ctid FROM poolkeeper.queue AS q CROSS JOIN LATERAL (
                SELECT k.ctid FROM poolkeeper.dead AS k WHERE k.queue_id = q.id AND k.died_at <= _now - q.retention_dead_letters
                ORDER BY k.died_at LIMIT _most FOR UPDATE SKIP LOCKED) AS o LIMIT _most))
        RETURNING d.task_id, d.queue_id, d.state_version, d.gate
    ), freed AS (
        INSERT INTO poolkeeper.gate_due (queue_id, gate) SELECT g.queue_id, g.gate FROM gone AS g WHERE g.gate IS NOT NULL
    ), told AS (
        INSERT INTO poolkeeper.event (task_id, queue_id, at, kind, actor, reason, state_version)
        SELECT g.task_id, g.queue_id, _now, 'discarded', 'poolkeeper', 'older than retention.deadLetters', g.state_version + 1 FROM gone AS g
    )
    SELECT array_agg(g.task_id) INTO _ids FROM gone AS g;
    DELETE FROM poolkeeper.checkpoint AS c WHERE c.task_id = ANY (_ids);
    RETURN coalesce(cardinality(_ids), 0);
END $$;

-- Erases the checkpoints of dead letters that have been dead for long; requeued, such a task begins anew. Each letter is
-- looked at once. Index: dead_checkpoint.
CREATE OR REPLACE FUNCTION poolkeeper.erase_checkpoints(_most integer, _now timestamptz, OUT looked bigint, OUT erased bigint)
LANGUAGE plpgsql
AS $$
DECLARE
    _ids uuid[];
BEGIN
    WITH marked AS (
        UPDATE poolkeeper.dead AS d SET checkpoint_erased = (SELECT c.task_id FROM poolkeeper.checkpoint AS c WHERE c.task_id = d.task_id) IS NOT NULL
        WHERE d.ctid = ANY (ARRAY(
            SELECT o.ctid FROM poolkeeper.queue AS q CROSS JOIN LATERAL (
                SELECT k.ctid FROM poolkeeper.dead AS k
                WHERE k.queue_id = q.id AND k.checkpoint_erased IS NULL AND k.died_at <= _now - q.retention_checkpoint
                ORDER BY k.died_at LIMIT _most FOR UPDATE SKIP LOCKED) AS o LIMIT _most))
        RETURNING d.task_id
    )
    SELECT array_agg(m.task_id) INTO _ids FROM marked AS m;
    looked := coalesce(cardinality(_ids), 0);
    DELETE FROM poolkeeper.checkpoint AS c WHERE c.task_id = ANY (_ids);
    GET DIAGNOSTICS erased = ROW_COUNT;
END $$;

-- Removes keys whose task ended, and has gone, long enough ago. Index: task_key_ended.
CREATE OR REPLACE FUNCTION poolkeeper.forget_old_keys(_most integer, _now timestamptz) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    _n bigint;
BEGIN
    DELETE FROM poolkeeper.task_key AS d WHERE d.ctid = ANY (ARRAY(
        SELECT o.ctid FROM poolkeeper.queue AS q CROSS JOIN LATERAL (
            SELECT k.ctid FROM poolkeeper.task_key AS k WHERE k.queue_id = q.id AND k.ended_at <= _now - q.retention_keys
            ORDER BY k.ended_at LIMIT _most FOR UPDATE SKIP LOCKED) AS o LIMIT _most));
    GET DIAGNOSTICS _n = ROW_COUNT;
    RETURN _n;
END $$;

-- Removes sessions that ended a week ago; one that comes back after all registers anew. Index: session_ended.
CREATE OR REPLACE FUNCTION poolkeeper.forget_sessions(_most integer, _now timestamptz) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    _n bigint;
BEGIN
    DELETE FROM poolkeeper.session AS s WHERE s.ctid = ANY (ARRAY(
        SELECT k.ctid FROM poolkeeper.session AS k
        WHERE k.ended_at <= _now - interval '7 days'
          AND (SELECT l.session_id FROM poolkeeper.lease AS l WHERE l.session_id = k.id LIMIT 1) IS NULL
        ORDER BY k.ended_at LIMIT _most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS _n = ROW_COUNT;
    RETURN _n;
END $$;

-- Removes decisions and drain reports of 30 days ago, of 100 pools a time. The last 20 decisions of a pool stay; of drain
-- reports nobody reads more than 14 days. Indexes: decision_age, decision_pool, drain_report_pool.
CREATE OR REPLACE FUNCTION poolkeeper.forget_reports(_most integer, _now timestamptz, OUT decisions bigint, OUT drains bigint, OUT more boolean)
LANGUAGE plpgsql
AS $$
DECLARE
    _pools integer[];
BEGIN
    INSERT INTO poolkeeper.retention_walk (kind, began_at) VALUES ('pools', _now) ON CONFLICT DO NOTHING;
    _pools := ARRAY(SELECT p.id FROM poolkeeper.pool AS p
                    WHERE p.id > (SELECT w.pool_id FROM poolkeeper.retention_walk AS w WHERE w.kind = 'pools') ORDER BY p.id LIMIT 100);
    DELETE FROM poolkeeper.decision AS d WHERE d.no = ANY (ARRAY(
        SELECT o.no FROM unnest(_pools) AS p (id) CROSS JOIN LATERAL (
            SELECT k.no FROM poolkeeper.decision AS k
            WHERE k.pool_id = p.id AND k.at <= _now - interval '30 days'
              AND k.no < (SELECT n.no FROM poolkeeper.decision AS n WHERE n.pool_id = p.id ORDER BY n.no DESC OFFSET 19 LIMIT 1)
            ORDER BY k.at LIMIT _most) AS o LIMIT _most));
    GET DIAGNOSTICS decisions = ROW_COUNT;
    DELETE FROM poolkeeper.drain_report AS d WHERE d.no = ANY (ARRAY(
        SELECT o.no FROM unnest(_pools) AS p (id) CROSS JOIN LATERAL (
            SELECT k.no FROM poolkeeper.drain_report AS k WHERE k.pool_id = p.id AND k.at <= _now - interval '30 days'
            ORDER BY k.at LIMIT _most) AS o LIMIT _most));
    GET DIAGNOSTICS drains = ROW_COUNT;
    more := decisions = _most OR drains = _most;
    IF NOT more THEN
        UPDATE poolkeeper.retention_walk AS w SET pool_id = CASE WHEN cardinality(_pools) = 100 THEN _pools[100] ELSE 0 END WHERE w.kind = 'pools';
        more := cardinality(_pools) = 100;
    END IF;
END $$;
