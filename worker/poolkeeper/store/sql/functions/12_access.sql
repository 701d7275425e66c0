-- Who calls: session_user, never a value that the client can set (Q51). Rights are checked in every function.

-- The caller's row. The schema's owner (and who may act as it) may everything. Raises PK403 for a login without a row.
CREATE OR REPLACE FUNCTION poolkeeper.caller() RETURNS poolkeeper.access
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    _row poolkeeper.access;
BEGIN
    SELECT a.* INTO _row FROM poolkeeper.access AS a WHERE a.role = session_user;
    IF NOT FOUND THEN
        IF NOT pg_has_role(session_user, (SELECT n.nspowner FROM pg_namespace AS n WHERE n.nspname = 'poolkeeper'), 'USAGE') THEN
            RAISE EXCEPTION 'role_not_allowed' USING ERRCODE = 'PK403',
                HINT = 'ask the owner of the installation for a row in poolkeeper.access';
        END IF;
        _row.role := session_user;
    END IF;
    RETURN _row;
END $$;

CREATE OR REPLACE FUNCTION poolkeeper.may_see(_caller poolkeeper.access, _queue text, _tenant text) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$
    SELECT ((_caller).queues IS NULL OR _queue = ANY ((_caller).queues))
       AND (_tenant IS NULL OR (((_caller).tenants IS NULL OR _tenant = ANY ((_caller).tenants))
                                AND NOT coalesce(_tenant = ANY ((_caller).tenants_except), false)))
$$;

-- Whether the caller may have what concerns a queue as a whole: its figures, its policy, its end. Not who is limited to
-- tenants, for whom the others' tasks do not exist.
CREATE OR REPLACE FUNCTION poolkeeper.may_tend_queue(_caller poolkeeper.access, _queue text) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$
    SELECT poolkeeper.may_see(_caller, _queue, NULL) AND (_caller).tenants IS NULL AND (_caller).tenants_except IS NULL
$$;

-- Whether the caller may rule a queue: no pool may, whatever roles its login was given by mistake.
CREATE OR REPLACE FUNCTION poolkeeper.may_rule_queue(_caller poolkeeper.access, _queue text) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$ SELECT poolkeeper.may_tend_queue(_caller, _queue) AND (_caller).pool IS NULL $$;

-- 'namespace/name' of what a caller wrote; no '/' means namespace 'default' (contract 11).
CREATE OR REPLACE FUNCTION poolkeeper.queue_path(_queue text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT CASE WHEN position('/' IN _queue) > 0 THEN _queue ELSE 'default/' || _queue END $$;

-- What a function needs of its transaction. A SET clause would be undone before the commit that matters (Q4), and a
-- stronger isolation level would count slots on an old snapshot (Q12).
CREATE OR REPLACE FUNCTION poolkeeper.demand_durable() RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION poolkeeper.demand_read_committed() RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'claims need READ COMMITTED, not %', current_setting('transaction_isolation')
            USING ERRCODE = 'PK400', HINT = 'limits would be counted on an old snapshot; set default_transaction_isolation of this role';
    END IF;
END $$;

-- Until when a lease lasts: its session's last renewal plus the queue's visibility timeout, or what extend said. The end
-- of a gap in which nobody could renew counts as a renewal (38_contact).
CREATE OR REPLACE FUNCTION poolkeeper.lease_until(_renewed_at timestamptz, _timeout interval, _extended_until timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE
AS $$ SELECT greatest(_renewed_at + _timeout, _extended_until) $$;

-- The session that calls: its secret must fit, and it must have been registered by the same login, or by the other one of its pool (69_logins).
CREATE OR REPLACE FUNCTION poolkeeper.session_of(_session uuid, _secret text) RETURNS poolkeeper.session
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    _row poolkeeper.session;
    _who poolkeeper.access := poolkeeper.caller();  -- a login whose row is gone has lost its sessions as well
BEGIN
    SELECT s.* INTO _row FROM poolkeeper.session AS s
    WHERE s.id = _session AND s.secret_hash = poolkeeper.token_hash(_secret)
      AND (s.role = session_user OR poolkeeper.is_twin(_who.pool, s.role));
    IF NOT FOUND THEN
        RAISE EXCEPTION 'unknown session' USING ERRCODE = 'PK401', HINT = 'register_session first; the secret is shown once';
    END IF;
    RETURN _row;
END $$;

-- What a session may be offered now: where its login has been limited since it registered, so is the session, at once. What it
-- holds already it may go on with.
CREATE OR REPLACE FUNCTION poolkeeper.as_limited(_s poolkeeper.session) RETURNS poolkeeper.session
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    _who poolkeeper.access := poolkeeper.caller();
BEGIN
    IF _who.pool <> (SELECT p.name FROM poolkeeper.pool AS p WHERE p.id = _s.pool_id) THEN
        _s.queue_ids := '{}';
    ELSIF _who.queues IS NOT NULL THEN
        _s.queue_ids := ARRAY(SELECT q.id FROM poolkeeper.queue AS q
                              WHERE q.id = ANY (_s.queue_ids) AND q.namespace || '/' || q.name = ANY (_who.queues) ORDER BY q.id);
    END IF;
    IF _who.tenants IS NOT NULL THEN
        _s.tenants := CASE WHEN _s.tenants IS NULL THEN _who.tenants
                           ELSE ARRAY(SELECT u.tenant FROM unnest(_s.tenants) AS u (tenant) WHERE u.tenant = ANY (_who.tenants)) END;
    END IF;
    IF NOT _who.tenants_except <@ coalesce(_s.tenants_except, '{}') THEN
        _s.tenants_except := coalesce(_s.tenants_except, '{}') || _who.tenants_except;
    END IF;
    RETURN _s;
END $$;
