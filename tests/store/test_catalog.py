"""The catalog itself: what the schema grants, and how its functions are made (Q51, Q6 of quality)."""

from store.scene import KINDS, Scene

GROUPS = [f"poolkeeper_{kind}" for kind in KINDS]


def test_every_granted_function_is_security_definer_with_a_pinned_search_path(bare_scene: Scene) -> None:
    """Q51: what others may execute runs as the owner and sees pg_catalog and nothing of the caller's."""
    rows = bare_scene.rows(
        "SELECT p.oid::regprocedure::text AS name, p.prosecdef, p.proconfig FROM pg_proc AS p"
        " WHERE p.pronamespace = 'poolkeeper'::regnamespace"
        " AND EXISTS (SELECT FROM unnest(%s::text[]) AS g WHERE has_function_privilege(g, p.oid, 'EXECUTE'))",
        GROUPS,
    )
    assert len(rows) > 20
    for row in rows:
        assert row.prosecdef, row.name
        assert "search_path=pg_catalog, pg_temp" in (row.proconfig or []), row.name


def test_no_call_is_compiled_before_it_runs(bare_scene: Scene) -> None:
    """F2: a server with LLVM would spend a quarter of a second on compiling a statement of microseconds."""
    rows = bare_scene.rows(
        "SELECT p.oid::regprocedure::text AS name FROM pg_proc AS p WHERE p.pronamespace = 'poolkeeper'::regnamespace"
        " AND p.prosecdef AND NOT 'jit=off' = ANY (coalesce(p.proconfig, '{}'))"
    )
    assert [r.name for r in rows] == []


def test_nothing_is_granted_to_public(bare_scene: Scene) -> None:
    """Q51: neither the schema, nor a function, a table, a column or a sequence."""
    assert (
        bare_scene.rows(
            "SELECT p.oid::regprocedure FROM pg_proc AS p, LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a"
            " WHERE p.pronamespace = 'poolkeeper'::regnamespace AND a.grantee = 0 AND p.proname <> 'clock'"
        )
        == []
    )  # the tests' own movable clock apart
    assert (
        bare_scene.rows(
            "SELECT c.relname FROM pg_class AS c, LATERAL aclexplode(c.relacl) AS a"
            " WHERE c.relnamespace = 'poolkeeper'::regnamespace AND a.grantee <> c.relowner"
        )
        == []
    )
    assert (
        bare_scene.rows(
            "SELECT a.attname FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid"
            " WHERE c.relnamespace = 'poolkeeper'::regnamespace AND a.attacl IS NOT NULL"
        )
        == []
    )
    assert (
        bare_scene.rows(
            "SELECT 1 FROM pg_namespace AS n, LATERAL aclexplode(n.nspacl) AS a WHERE n.nspname = 'poolkeeper' AND a.grantee = 0"
        )
        == []
    )


def test_the_groups_have_the_schemas_use_and_functions_alone(bare_scene: Scene) -> None:
    """Q51: no table, view or sequence, and no CREATE."""
    for group in GROUPS:
        row = bare_scene.rows(
            "SELECT has_schema_privilege(%s, 'poolkeeper', 'USAGE') AS use, has_schema_privilege(%s, 'poolkeeper', 'CREATE') AS make",
            group,
            group,
        )[0]
        assert tuple(row) == (True, False)
        assert (
            bare_scene.rows(
                "SELECT c.relname FROM pg_class AS c WHERE c.relnamespace = 'poolkeeper'::regnamespace AND c.relkind IN ('r', 'p', 'v')"
                " AND has_table_privilege(%s, c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')",
                group,
            )
            == []
        )


def test_the_groups_cannot_log_in(bare_scene: Scene) -> None:
    """Contract: a login joins a group; a group is nobody."""
    assert (
        bare_scene.rows("SELECT rolname FROM pg_roles WHERE rolname = ANY (%s) AND (rolcanlogin OR rolsuper)", GROUPS)
        == []
    )


def test_no_security_definer_function_is_reachable_by_accident(bare_scene: Scene) -> None:
    """Q51: each one of them checks its caller: it names caller(), session_of() or a function that does."""
    rows = bare_scene.rows(
        "SELECT p.proname AS name, p.prosrc AS source FROM pg_proc AS p"
        " WHERE p.pronamespace = 'poolkeeper'::regnamespace AND p.prosecdef"
    )
    checks = (
        "poolkeeper.caller()",
        "poolkeeper.session_of(",
        "poolkeeper.visible_task(",
        "poolkeeper.may_rule(",
        "poolkeeper.visible_schedule(",
        "poolkeeper.submit_many(",
        "poolkeeper.take_dead(",
        "poolkeeper.matching_page(",
        "poolkeeper.take_matching(",
        "poolkeeper.demand_leader_of_pool(",
    )
    unchecked = {r.name for r in rows if not any(check in r.source for check in checks)}
    assert unchecked == {"installation"}  # read by everybody at start, and says nothing of anybody


def test_foreign_text_is_executed_nowhere(bare_scene: Scene) -> None:
    """The house's rule: no SQL assembled from strings, except the DDL of months and logins, through quoted formatting."""
    rows = bare_scene.rows(
        "SELECT p.proname AS name FROM pg_proc AS p WHERE p.pronamespace = 'poolkeeper'::regnamespace AND p.prosrc ~ '\\mEXECUTE\\M'"
    )
    assert {r.name for r in rows} <= {"maintain", "set_pool_login", "retire_pool_login"}


def test_every_row_of_a_task_carries_its_tenant_through_its_body(bare_scene: Scene) -> None:
    """Q51: a tenant is never absent nor empty."""
    assert bare_scene.rows(
        "SELECT 1 FROM information_schema.columns WHERE table_schema = 'poolkeeper' AND table_name = 'task'"
        " AND column_name = 'tenant' AND is_nullable = 'NO'"
    )


def test_who_calls_is_asked_before_anything_is_planned(scene: Scene) -> None:
    """Q51: a plan that begins with an empty table would evaluate no join with the caller, and refuse nobody."""
    asks = """
        SELECT p.proname FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
        WHERE p.pronamespace = 'poolkeeper'::regnamespace AND l.lanname = 'sql' AND p.prosrc ~ 'poolkeeper\\.caller\\(\\)'
    """
    assert scene.rows(asks) == []
    assert scene.rows(asks.replace("'sql'", "'plpgsql'")) != []
