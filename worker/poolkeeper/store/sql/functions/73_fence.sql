-- The installation fence (Q24, ADR 0024): a copy, a restore or a fail-over that lost commits is not gone on with until a
-- person accepts it. Held: nothing is claimed or started and nothing expires; settles of what runs and submits are taken.

-- Where this database is. Any login may read it but, on some hosts, the system's id, which is then NULL. The position is what
-- is durable here: after a crash no less is there.
CREATE OR REPLACE FUNCTION poolkeeper.whereabouts(OUT system_id bigint, OUT database_oid oid, OUT timeline text, OUT lsn pg_lsn)
LANGUAGE plpgsql
AS $$
BEGIN
    IF pg_is_in_recovery() THEN  -- where a position cannot be read; a standby's own error for that names neither cause nor remedy
        RAISE EXCEPTION 'a standby' USING ERRCODE = 'read_only_sql_transaction';
    END IF;
    database_oid := (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database());
    lsn := pg_current_wal_flush_lsn();
    timeline := left(pg_walfile_name(lsn), 8);
    BEGIN
        system_id := (SELECT c.system_identifier FROM pg_control_system() AS c);
    EXCEPTION WHEN insufficient_privilege THEN NULL;
    END;
END $$;

-- Compares where this is with where it was, after each start of the server and at each registration. A new timeline alone is
-- a promotion, which goes on (Q23); whether it lost anything is told by who remembers. Locks: contact, SKIP LOCKED.
CREATE OR REPLACE FUNCTION poolkeeper.examine(_now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    _here record;
    _was  poolkeeper.contact;
BEGIN
    SELECT w.* INTO _here FROM poolkeeper.whereabouts() AS w;
    SELECT c.* INTO _was FROM poolkeeper.contact AS c;
    IF _was.held_since IS NOT NULL THEN
        RETURN;
    END IF;
    IF _was.system_id <> _here.system_id OR _was.database_oid <> _here.database_oid THEN
        PERFORM poolkeeper.hold(CASE WHEN _was.system_id <> _here.system_id THEN 'another_system' ELSE 'another_database' END, _now);
    ELSIF _was.timeline IS DISTINCT FROM _here.timeline OR _was.database_oid IS NULL THEN
        UPDATE poolkeeper.contact AS c SET system_id = _here.system_id, database_oid = _here.database_oid, timeline = _here.timeline, timeline_lsn = _here.lsn
        WHERE c.singleton = (SELECT k.singleton FROM poolkeeper.contact AS k FOR NO KEY UPDATE SKIP LOCKED);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION poolkeeper.hold(_why text, _now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE poolkeeper.contact AS c SET held_since = _now, held_why = _why WHERE c.held_since IS NULL;
END $$;

-- What a process remembers of its last answer: {timeline, lsn, renewals, accepts, session}, sealed with the installation's own
-- key, which copies and restores of it have as well: nobody can hold an installation by inventing a position.
CREATE OR REPLACE FUNCTION poolkeeper.position(_session uuid, _renewals bigint) RETURNS jsonb
LANGUAGE sql VOLATILE
AS $$
    SELECT y.told || jsonb_build_object('seal', encode(poolkeeper.payload_digest(y.told), 'hex'))
    FROM (SELECT jsonb_build_object('timeline', left(pg_walfile_name(x.lsn), 8), 'lsn', x.lsn, 'renewals', _renewals, 'session', _session,
                                    'accepts', (SELECT c.accepts FROM poolkeeper.contact AS c)) AS told
          FROM (SELECT pg_current_wal_flush_lsn() AS lsn) AS x) AS y
$$;

-- Whether a position that was acknowledged is in this database: not if it is beyond the end of its timeline, beyond where the
-- next one was seen first, on a timeline that has not begun, or counts more renewals of the session than there are here
-- (_renewals; NULL: the session is not here at all, which says nothing after a retention). Positions of before the last
-- acceptance are of what was given up. One that this installation did not seal says nothing.
CREATE OR REPLACE FUNCTION poolkeeper.compare_position(_position jsonb, _session uuid, _renewals bigint, _now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    _was poolkeeper.contact;
    _on  text := _position ->> 'timeline';
    _lsn pg_lsn;
BEGIN
    PERFORM poolkeeper.examine(_now);
    IF jsonb_typeof(_position) <> 'object'
        OR (_position ->> 'seal') IS DISTINCT FROM encode(poolkeeper.payload_digest(_position - 'seal'), 'hex') THEN
        RETURN;
    END IF;
    _lsn := (_position ->> 'lsn')::pg_lsn;
    SELECT c.* INTO _was FROM poolkeeper.contact AS c;
    IF _was.held_since IS NOT NULL OR _was.accepts <> (_position ->> 'accepts')::integer THEN
        RETURN;
    END IF;
    IF _on > _was.timeline OR (_on = _was.timeline AND _lsn > pg_current_wal_insert_lsn()) THEN
        PERFORM poolkeeper.hold('older_copy', _now);
    ELSIF _on < _was.timeline AND (_lsn > _was.timeline_lsn OR (_renewals < (_position ->> 'renewals')::bigint AND _session = (_position ->> 'session')::uuid)) THEN
        PERFORM poolkeeper.hold('lost_commits', _now);
    END IF;
END $$;

-- A person lets a held installation go on as what it is now. Leases that it holds get one further visibility timeout; then
-- what their workers did not keep is delivered again. False: it was not held. Not by who is limited to queues or tenants: it
-- lets those of all others go on as well.
CREATE OR REPLACE FUNCTION poolkeeper.accept_installation(_who text, _why text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    _caller poolkeeper.access := poolkeeper.caller();
    _now  timestamptz := poolkeeper.clock();
    _was  poolkeeper.contact;
    _here record;
BEGIN
    IF _caller.queues IS NOT NULL OR _caller.tenants IS NOT NULL OR _caller.tenants_except IS NOT NULL THEN
        RAISE EXCEPTION 'role_not_allowed' USING ERRCODE = 'PK403', HINT = 'this login is limited to queues or tenants; ask one that is not';
    END IF;
    PERFORM poolkeeper.demand_durable();
    PERFORM poolkeeper.examine(_now);
    SELECT c.* INTO _was FROM poolkeeper.contact AS c FOR NO KEY UPDATE;
    IF _was.held_since IS NULL THEN
        RETURN false;
    END IF;
    SELECT w.* INTO _here FROM poolkeeper.whereabouts() AS w;
    INSERT INTO poolkeeper.acceptance (at, login, who, why, held_since, held_why)
    VALUES (_now, session_user, _who, _why, _was.held_since, _was.held_why);
    UPDATE poolkeeper.contact AS c SET held_since = NULL, held_why = NULL, accepts = c.accepts + 1, system_id = _here.system_id, database_oid = _here.database_oid,
        timeline = _here.timeline, timeline_lsn = _here.lsn, seen_at = _now, gap_from = _was.seen_at, gap_to = _now, proven = true;
    PERFORM poolkeeper.give_grace(_was.seen_at, _now, true);
    PERFORM poolkeeper.spend_all(_was.held_since);
    PERFORM poolkeeper.wake();
    RETURN true;
END $$;

-- Where a database is that was migrated just now.
DO $$ BEGIN
    PERFORM poolkeeper.examine(clock_timestamp()) FROM poolkeeper.contact AS c WHERE c.database_oid IS NULL;
END $$;
