-- What is installed here: read by everybody at start (contract 18).
CREATE OR REPLACE FUNCTION poolkeeper.installation() RETURNS TABLE (instance_id uuid, schema_version integer)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$ SELECT i.id, (SELECT max(m.version) FROM poolkeeper.migration AS m) FROM poolkeeper.instance AS i $$;
