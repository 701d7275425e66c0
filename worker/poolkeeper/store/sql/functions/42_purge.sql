-- Removing a queue with everything that belongs to it, for a TaskQueue with deletionPolicy Purge (O9): page by page, each
-- call a transaction of its own, so that nothing waits long and a crash costs nothing. No index is kept for it: it walks
-- the tasks by id and the keys by tenant, and the caller carries the place where it stopped.

-- Removes tasks and all rows about them, wherever they are. Locks: task, ordered, ready, later, suspect, dead, lease, each by ascending
-- ids; a task may move from table to table between our looks, or while we wait for one, so we look until two rounds find
-- nothing.
CREATE OR REPLACE FUNCTION poolkeeper.forget_tasks(_ids uuid[]) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    _n     bigint;
    _round bigint;
    _empty integer := 0;
    _holds uuid[];
    _nos   integer[];
BEGIN
    PERFORM FROM poolkeeper.task AS t WHERE t.id = ANY (_ids) ORDER BY t.id FOR UPDATE;  -- before their deliveries, as retention does
    FOR _i IN 1 .. 20 LOOP
        DELETE FROM poolkeeper.ordered AS r WHERE r.task_id = ANY (_ids);
        GET DIAGNOSTICS _round = ROW_COUNT;
        DELETE FROM poolkeeper.ready AS r WHERE r.task_id = ANY (_ids);
        GET DIAGNOSTICS _n = ROW_COUNT;
        _round := _round + _n;
        DELETE FROM poolkeeper.later AS r WHERE r.task_id = ANY (_ids);
        GET DIAGNOSTICS _n = ROW_COUNT;
        _round := _round + _n;
        DELETE FROM poolkeeper.suspect AS r WHERE r.task_id = ANY (_ids);
        GET DIAGNOSTICS _n = ROW_COUNT;
        _round := _round + _n;
        DELETE FROM poolkeeper.dead AS r WHERE r.task_id = ANY (_ids);
        GET DIAGNOSTICS _n = ROW_COUNT;
        _round := _round + _n;
        WITH gone AS (
            DELETE FROM poolkeeper.lease AS r WHERE r.task_id = ANY (_ids) RETURNING r.task_id, r.delivery, r.held
        )
        SELECT count(*), array_agg(g.task_id) FILTER (WHERE g.held), array_agg(g.delivery) FILTER (WHERE g.held) INTO _n, _holds, _nos FROM gone AS g;
        IF _holds IS NOT NULL THEN  -- its worker may go on for a moment: what it holds of providers counts as spent (Q40)
            PERFORM poolkeeper.end_holds(_holds, _nos, array_fill(false, ARRAY[cardinality(_holds)]), array_fill(false, ARRAY[cardinality(_holds)]), poolkeeper.clock());
        END IF;
        _empty := CASE WHEN _round + _n = 0 THEN _empty + 1 ELSE 0 END;
        EXIT WHEN _empty = 2;
    END LOOP;
    DELETE FROM poolkeeper.delivery AS d WHERE d.retention = 0 AND d.task_id = ANY (_ids);
    DELETE FROM poolkeeper.event AS e WHERE e.retention = 0 AND e.task_id = ANY (_ids);
    DELETE FROM poolkeeper.checkpoint AS c WHERE c.task_id = ANY (_ids);
    DELETE FROM poolkeeper.retention_note AS n WHERE n.task_id = ANY (_ids);
    DELETE FROM poolkeeper.expiry AS x WHERE x.task_id = ANY (_ids);
    DELETE FROM poolkeeper.task AS t WHERE t.id = ANY (_ids);
    GET DIAGNOSTICS _n = ROW_COUNT;
    RETURN _n;
END $$;

-- Up to so many tasks that wait, run or are dead in a queue. Indexes: ready_claim, ordered_next, later_queue, dead_queue, lease_queue.
CREATE OR REPLACE FUNCTION poolkeeper.tasks_in(_queue_id integer, _most integer) RETURNS uuid[]
LANGUAGE sql STABLE
AS $$
    SELECT ARRAY(
        (SELECT r.task_id FROM poolkeeper.ready AS r WHERE r.queue_id = _queue_id LIMIT _most)
        UNION (SELECT r.task_id FROM poolkeeper.ordered AS r WHERE r.queue_id = _queue_id LIMIT _most)
        UNION (SELECT r.task_id FROM poolkeeper.later AS r WHERE r.queue_id = _queue_id LIMIT _most)
        UNION (SELECT r.task_id FROM poolkeeper.suspect AS r WHERE r.queue_id = _queue_id LIMIT _most)
        UNION (SELECT r.task_id FROM poolkeeper.dead AS r WHERE r.queue_id = _queue_id LIMIT _most)
        UNION (SELECT r.task_id FROM poolkeeper.lease AS r WHERE r.queue_id = _queue_id LIMIT _most)
        ORDER BY 1)
$$;

-- Removes up to so many keys of a queue, walking the tenants after _from; answers the last tenant that has none left, NULL
-- when all have none. Index: task_key_pkey.
CREATE OR REPLACE FUNCTION poolkeeper.forget_keys(_queue_id integer, _from text, _most integer) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    _tenant text;
    _n      bigint;
BEGIN
    WHILE _most > 0 LOOP
        SELECT k.tenant INTO _tenant FROM poolkeeper.task_key AS k WHERE k.tenant > _from ORDER BY k.tenant LIMIT 1;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        DELETE FROM poolkeeper.task_key AS k WHERE k.tenant = _tenant AND k.queue_id = _queue_id AND k.key = ANY (ARRAY(
            SELECT x.key FROM poolkeeper.task_key AS x WHERE x.tenant = _tenant AND x.queue_id = _queue_id ORDER BY x.key LIMIT _most));
        GET DIAGNOSTICS _n = ROW_COUNT;
        IF _n < _most THEN  -- fewer than there was room for: the tenant has none left
            _from := _tenant;
        END IF;
        _most := _most - greatest(_n, 1);
    END LOOP;
    RETURN _from;
END $$;

-- One page of the removal of a queue: pauses it first, so that nothing is submitted or claimed any more, then removes
-- tasks, keys and at last the queue itself. Answers queue_owned, and touches nothing, where the queue is another's. What
-- runs is lost to its worker, which hears so when it renews or settles. The next call takes the cursor of this one; a NULL
-- cursor says that nothing is left. A submit that was under way all the time leaves rows that maintain removes. Locks:
-- queue, then as forget_tasks; waits at most 2 s.
CREATE OR REPLACE FUNCTION poolkeeper.purge(
    _cluster text, _namespace_uid text, _namespace text, _name text, _who text, _cursor jsonb DEFAULT NULL, _most integer DEFAULT 2000,
    _term uuid DEFAULT NULL
) RETURNS TABLE (code text, removed bigint, cursor jsonb)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _caller poolkeeper.access := poolkeeper.caller();
    _q      poolkeeper.queue;
    _spec   jsonb;
    _ids    uuid[];
    _last   uuid;
    _seen   bigint;
    _tenant text;
BEGIN
    IF NOT poolkeeper.may_rule_queue(_caller, _namespace || '/' || _name) THEN
        RAISE EXCEPTION 'role_not_allowed' USING ERRCODE = 'PK403', HINT = 'this login may not remove that queue';
    END IF;
    PERFORM poolkeeper.demand_durable();
    PERFORM poolkeeper.demand_leader(_cluster, _namespace, _term);
    PERFORM set_config('lock_timeout', '2s', true);  -- rather later than in the way
    _most := least(greatest(_most, 1), 10000);
    SELECT q.* INTO _q FROM poolkeeper.queue AS q WHERE q.namespace = _namespace AND q.name = _name FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT NULL::text, 0::bigint, NULL::jsonb;
        RETURN;
    END IF;
    IF (_q.cluster, _q.namespace_uid) <> (_cluster, _namespace_uid) THEN
        RETURN QUERY SELECT 'queue_owned', 0::bigint, NULL::jsonb;
        RETURN;
    END IF;
    IF NOT _q.paused THEN
        SELECT p.spec INTO _spec FROM poolkeeper.policy AS p WHERE p.queue_id = _q.id AND p.version = _q.policy_version;
        PERFORM poolkeeper.apply_policy(_cluster, _namespace_uid, _namespace, _name, coalesce(_spec, '{}') || '{"paused": true}', _who, NULL, _term);
        RETURN QUERY SELECT NULL::text, 0::bigint, '{"tasks": "00000000-0000-0000-0000-000000000000"}'::jsonb;
        RETURN;
    END IF;
    IF _cursor IS NULL OR _cursor ? 'tasks' THEN
        SELECT array_agg(p.id ORDER BY p.id) FILTER (WHERE p.queue_id = _q.id), (array_agg(p.id ORDER BY p.id DESC))[1], count(*)
        INTO _ids, _last, _seen
        FROM (SELECT t.id, t.queue_id FROM poolkeeper.task AS t
              WHERE t.id > coalesce((_cursor ->> 'tasks')::uuid, '00000000-0000-0000-0000-000000000000') ORDER BY t.id LIMIT _most) AS p;
        RETURN QUERY SELECT NULL::text, poolkeeper.forget_tasks(coalesce(_ids, '{}')),
                            CASE WHEN _seen < _most THEN '{"keys": ""}'::jsonb ELSE jsonb_build_object('tasks', _last) END;
        RETURN;
    END IF;
    IF _cursor ? 'keys' THEN
        _tenant := poolkeeper.forget_keys(_q.id, _cursor ->> 'keys', _most);
        RETURN QUERY SELECT NULL::text, 0::bigint, CASE WHEN _tenant IS NULL THEN '{"rest": true}'::jsonb ELSE jsonb_build_object('keys', _tenant) END;
        RETURN;
    END IF;
    _ids := poolkeeper.tasks_in(_q.id, _most);
    IF cardinality(_ids) > 0 THEN  -- accepted by a transaction that was under way when the queue was paused
        RETURN QUERY SELECT NULL::text, poolkeeper.forget_tasks(_ids), '{"keys": ""}'::jsonb;
        RETURN;
    END IF;
    DELETE FROM poolkeeper.retention_note AS n WHERE n.queue_id = _q.id;  -- of tasks that went while they were being looked at
    DELETE FROM poolkeeper.schedule AS s WHERE s.queue_id = _q.id;
    DELETE FROM poolkeeper.expiry AS e WHERE e.queue_id = _q.id;
    DELETE FROM poolkeeper.dead_post AS p WHERE p.queue_id = _q.id;
    DELETE FROM poolkeeper.opening AS o WHERE o.queue_id = _q.id;
    DELETE FROM poolkeeper.lane AS l WHERE l.queue_id = _q.id;
    DELETE FROM poolkeeper.tenant_rule AS t WHERE t.queue_id = _q.id;
    DELETE FROM poolkeeper.policy AS p WHERE p.queue_id = _q.id;
    DELETE FROM poolkeeper.gate_due AS d WHERE d.queue_id = _q.id;
    DELETE FROM poolkeeper.gate AS g WHERE g.queue_id = _q.id;
    DELETE FROM poolkeeper.queue_count AS c WHERE c.queue_id = _q.id;
    DELETE FROM poolkeeper.backlog_lane AS b WHERE b.queue_id = _q.id;
    DELETE FROM poolkeeper.backlog AS b WHERE b.queue_id = _q.id;
    DELETE FROM poolkeeper.queue AS q WHERE q.id = _q.id;
    RETURN QUERY SELECT NULL::text, 0::bigint, NULL::jsonb;
END $$;

-- The first queue after this one that has tasks. Indexes: as tasks_in.
CREATE OR REPLACE FUNCTION poolkeeper.next_with_tasks(_after integer) RETURNS integer
LANGUAGE sql STABLE
AS $$
    SELECT least((SELECT r.queue_id FROM poolkeeper.ready AS r WHERE r.queue_id > _after ORDER BY r.queue_id LIMIT 1),
                 (SELECT r.queue_id FROM poolkeeper.ordered AS r WHERE r.queue_id > _after ORDER BY r.queue_id LIMIT 1),
                 (SELECT r.queue_id FROM poolkeeper.gate_due AS r WHERE r.queue_id > _after ORDER BY r.queue_id LIMIT 1),
                 (SELECT r.queue_id FROM poolkeeper.later AS r WHERE r.queue_id > _after ORDER BY r.queue_id LIMIT 1),
                 (SELECT r.queue_id FROM poolkeeper.suspect AS r WHERE r.queue_id > _after ORDER BY r.queue_id LIMIT 1),
                 (SELECT r.queue_id FROM poolkeeper.dead AS r WHERE r.queue_id > _after ORDER BY r.queue_id LIMIT 1),
                 (SELECT r.queue_id FROM poolkeeper.lease AS r WHERE r.queue_id > _after ORDER BY r.queue_id LIMIT 1))
$$;

-- Removes what late transactions wrote into queues that were purged meanwhile; ids of queues are never used again. A few
-- probes for each queue that has tasks; at most so many tasks of each. Part of maintain.
CREATE OR REPLACE FUNCTION poolkeeper.forget_strays(_most integer) RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    _id      integer := -1;
    _ids     uuid[];
    _removed bigint := 0;
BEGIN
    LOOP
        _id := poolkeeper.next_with_tasks(_id);
        EXIT WHEN _id IS NULL;
        CONTINUE WHEN EXISTS (SELECT FROM poolkeeper.queue AS q WHERE q.id = _id);
        _ids := poolkeeper.tasks_in(_id, _most);
        DELETE FROM poolkeeper.task_key AS k USING poolkeeper.task AS t
        WHERE t.id = ANY (_ids) AND k.tenant = t.tenant AND k.queue_id = _id;
        _removed := _removed + poolkeeper.forget_tasks(_ids);
        DELETE FROM poolkeeper.gate_due AS d WHERE d.queue_id = _id;
    END LOOP;
    RETURN _removed;
END $$;
