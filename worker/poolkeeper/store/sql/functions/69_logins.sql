-- The logins of pools (O5): two for each, "a" and "b", in turn, so that a password changes without anybody being cut off. Roles are made,
-- changed and removed here alone, with the rights of the schema's owner, who needs CREATEROLE and ADMIN OPTION on poolkeeper_worker; the operator
-- needs neither, on Postgres 15 either. A role's name follows from installation, database and pool, so that no other role can be meant; its password
-- comes as a SCRAM verifier, never plain. Locks: leader, then access.

CREATE OR REPLACE FUNCTION poolkeeper.pool_login(_pool text, _slot text) RETURNS name
LANGUAGE sql STABLE
AS $$
    SELECT ('poolkeeper_pool_' || left(encode(sha256(convert_to(i.id::text || '/' || current_database() || '/' || _pool, 'UTF8')), 'hex'), 24) || '_' || _slot)::name
    FROM poolkeeper.instance AS i
$$;

-- Whether this is a login of the caller's own pool: what one of the two began the other one goes on with.
CREATE OR REPLACE FUNCTION poolkeeper.is_twin(_pool text, _role name) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT coalesce((session_user, _role) IN ((poolkeeper.pool_login(_pool, 'a'), poolkeeper.pool_login(_pool, 'b')),
                                              (poolkeeper.pool_login(_pool, 'b'), poolkeeper.pool_login(_pool, 'a'))), false)
$$;

-- For every change of a pool's logins: a slot that there is, and who is limited gives and takes nothing that it has not itself.
CREATE OR REPLACE FUNCTION poolkeeper.demand_may_give(_pool text, _slot text, _queues text[]) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    _me poolkeeper.access := poolkeeper.caller();
BEGIN
    PERFORM poolkeeper.demand_text(_pool, 'a pool''s name');
    PERFORM poolkeeper.demand(_slot IN ('a', 'b'), 'a pool has no such login', 'give a or b');
    IF _me.tenants IS NOT NULL OR _me.tenants_except IS NOT NULL OR NOT coalesce(_queues <@ _me.queues, true) THEN
        RAISE EXCEPTION 'role_not_allowed' USING ERRCODE = 'PK403', HINT = 'a login that is limited itself gives no more than it has';
    END IF;
END $$;

-- Makes a login of a pool, or gives it another password, and says what it may see: queues of the pool's own namespace, and tenants. Without a verifier only
-- the latter changes, of a login that is there. Answers the role, NULL where there is none.
CREATE OR REPLACE FUNCTION poolkeeper.set_pool_login(_pool text, _slot text, _verifier text, _queues text[], _tenants text[], _tenants_except text[], _term uuid DEFAULT NULL)
RETURNS name
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    _role name;
    _is   record;
BEGIN
    PERFORM poolkeeper.demand_leader_of_pool(_pool, _term, 'change logins');
    PERFORM poolkeeper.demand_may_give(_pool, _slot, _queues);
    PERFORM poolkeeper.demand(cardinality(_queues) > 0 AND NOT EXISTS (SELECT FROM unnest(_queues) AS q WHERE NOT coalesce(starts_with(q, split_part(_pool, '/', 1) || '/'), false)),
                              'a pool''s login cannot have these queues', 'give some of its own namespace, each as namespace/name');
    PERFORM poolkeeper.demand(_verifier IS NULL OR _verifier ~ '^SCRAM-SHA-256\$[1-9][0-9]{3,6}:[A-Za-z0-9+/]{22,88}={0,2}\$[A-Za-z0-9+/]{43}=:[A-Za-z0-9+/]{43}=$',
                              'a password is told by its SCRAM verifier alone', 'give SCRAM-SHA-256$iterations:salt$stored:server');
    _role := poolkeeper.pool_login(_pool, _slot);
    SELECT r.rolsuper OR r.rolcreaterole OR r.rolcreatedb OR r.rolreplication OR r.rolbypassrls AS mighty INTO _is FROM pg_roles AS r WHERE r.rolname = _role;
    IF FOUND AND _is.mighty THEN
        RAISE EXCEPTION 'role_not_allowed' USING ERRCODE = 'PK403', HINT = format('role "%s" may more than a pool may; drop it, or take that away', _role);
    END IF;
    IF NOT FOUND AND _verifier IS NULL THEN
        RETURN NULL;
    END IF;
    IF _verifier IS NOT NULL THEN
        BEGIN
            IF _is.mighty IS NULL THEN
                EXECUTE format('CREATE ROLE %I LOGIN PASSWORD %L IN ROLE poolkeeper_worker', _role, _verifier);
                EXECUTE format('COMMENT ON ROLE %I IS %L', _role, format('Poolkeeper: pool %s in database %s', _pool, current_database()));
            ELSE
                EXECUTE format('ALTER ROLE %I LOGIN PASSWORD %L', _role, _verifier);
                EXECUTE format('GRANT poolkeeper_worker TO %I', _role);
            END IF;
        EXCEPTION WHEN insufficient_privilege THEN
            RAISE EXCEPTION 'role_not_allowed' USING ERRCODE = 'PK403',
                HINT = format('the owner of schema poolkeeper makes the logins of pools: ALTER ROLE %1$I CREATEROLE; GRANT poolkeeper_worker TO %1$I WITH ADMIN OPTION', current_user);
        END;
    END IF;
    INSERT INTO poolkeeper.access AS a (role, pool, queues, tenants, tenants_except) VALUES (_role, _pool, _queues, _tenants, _tenants_except)
    ON CONFLICT (role) DO UPDATE SET pool = EXCLUDED.pool, queues = EXCLUDED.queues, tenants = EXCLUDED.tenants, tenants_except = EXCLUDED.tenants_except
    WHERE (a.pool, a.queues, a.tenants, a.tenants_except) IS DISTINCT FROM (EXCLUDED.pool, EXCLUDED.queues, EXCLUDED.tenants, EXCLUDED.tenants_except);
    RETURN _role;
END $$;

-- The logins of the pools of a namespace, or of one pool: whether one may still log in, and how many connections it has now.
CREATE OR REPLACE FUNCTION poolkeeper.pool_logins(_namespace text, _pool text DEFAULT NULL) RETURNS TABLE (pool text, slot text, role name, open boolean, connections integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _me poolkeeper.access := poolkeeper.caller();  -- first: a plan may begin with what has no rows, and ask nobody
BEGIN RETURN QUERY
    SELECT a.pool, s.slot, a.role, r.rolcanlogin, (SELECT count(*)::integer FROM pg_stat_activity AS c WHERE c.usename = a.role)
    FROM poolkeeper.access AS a
    JOIN unnest(ARRAY['a', 'b']) AS s (slot) ON a.role = poolkeeper.pool_login(a.pool, s.slot)
    JOIN pg_roles AS r ON r.rolname = a.role
    WHERE starts_with(a.pool, _namespace || '/') AND _me.pool IS NULL AND (_pool IS NULL OR a.pool = _pool)
      AND (_me.queues IS NULL OR a.queues <@ _me.queues)
    ORDER BY a.pool, s.slot;
END $$;

-- Takes one step towards the end of a login, and answers what it is: "in_use" with its connections, and nothing is done; "closed": nobody can log in
-- any more, so that the next call can be certain; "gone". It stays closed while something depends on it, such as a table that somebody granted it.
-- Never is a connection ended by it.
CREATE OR REPLACE FUNCTION poolkeeper.retire_pool_login(_pool text, _slot text, _term uuid DEFAULT NULL) RETURNS TABLE (state text, connections integer)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _role name;
    _open boolean;
    _n    integer;
BEGIN
    PERFORM poolkeeper.demand_leader_of_pool(_pool, _term, 'change logins');
    _role := poolkeeper.pool_login(_pool, _slot);
    PERFORM poolkeeper.demand_may_give(_pool, _slot, (SELECT a.queues FROM poolkeeper.access AS a WHERE a.role = _role));
    SELECT r.rolcanlogin INTO _open FROM pg_roles AS r WHERE r.rolname = _role;
    IF FOUND THEN
        SELECT count(*) INTO _n FROM pg_stat_activity AS c WHERE c.usename = _role;
        IF _n > 0 THEN
            RETURN QUERY SELECT 'in_use', _n;
            RETURN;
        END IF;
        IF _open THEN
            EXECUTE format('ALTER ROLE %I NOLOGIN', _role);
            RETURN QUERY SELECT 'closed', 0;
            RETURN;
        END IF;
        BEGIN
            EXECUTE format('DROP ROLE %I', _role);
        EXCEPTION WHEN dependent_objects_still_exist THEN
            RETURN QUERY SELECT 'closed', 0;
            RETURN;
        END;
    END IF;
    DELETE FROM poolkeeper.access AS a WHERE a.role = _role;
    RETURN QUERY SELECT 'gone', 0;
END $$;
