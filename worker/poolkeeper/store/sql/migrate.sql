-- The statements of poolkeeper.store.migrate.

-- name: ledger
CREATE TABLE poolkeeper.migration (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)

-- name: functions_ledger
CREATE TABLE poolkeeper.functions (singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton), checksum text NOT NULL)

-- name: create_schema
CREATE SCHEMA IF NOT EXISTS poolkeeper

-- name: has_ledger
SELECT to_regclass('poolkeeper.migration') IS NOT NULL AS value

-- name: applied
SELECT version, name, checksum FROM poolkeeper.migration ORDER BY version

-- name: functions_checksum
SELECT checksum AS value FROM poolkeeper.functions

-- name: record
INSERT INTO poolkeeper.migration (version, name, checksum) VALUES (%(version)s, %(name)s, %(checksum)s)

-- name: record_functions
INSERT INTO poolkeeper.functions (checksum) VALUES (%(checksum)s) ON CONFLICT (singleton) DO UPDATE SET checksum = EXCLUDED.checksum

-- name: one_at_a_time
SELECT pg_advisory_xact_lock(7021113408917)

-- name: settings
SELECT set_config('lock_timeout', '5s', true), set_config('check_function_bodies', 'off', true), set_config('search_path', 'pg_catalog, pg_temp', true)

-- name: first_partitions
SELECT * FROM poolkeeper.maintain()
