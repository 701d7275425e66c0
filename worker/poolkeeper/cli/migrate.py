"""`poolkeeper migrate --print | --check | --apply`: the schema, on a connection of its owner, direct or through a pooler (contract 18, C20)."""

import click

from poolkeeper.cli.database import connected, dsn
from poolkeeper.cli.output import as_json, output


@click.command()
@click.option("--print", "what", flag_value="print", help="Print the SQL that --apply would run.")
@click.option(
    "--check", "what", flag_value="check", help="Say whether this program works with the schema; exit 5 if not."
)
@click.option("--apply", "what", flag_value="apply", help="Run what is missing, in one transaction.")
@dsn
@output
def migrate(what: str | None, dsn: str | None, form: str) -> None:
    """Show, check or apply the schema's migrations. Exactly one of --print, --check and --apply."""
    from poolkeeper.store import calls, run
    from poolkeeper.store import migrate as schema

    if what is None:
        raise click.UsageError("say what to do: --print, --check or --apply")
    said: list[str] = []
    with connected(dsn, any_schema=True) as conn:
        if what == "print":
            steps = schema.plan(conn)
            print(
                as_json([{"name": step.name, "sql": step.text} for step in steps])
                if form == "json"
                else "\n".join(step.text for step in steps)
            )
            return
        if what == "check":
            here = run(conn, calls.installation())
            schema.check_version(here.schema_version)
            print(
                as_json(here) if form == "json" else f"schema version {here.schema_version}, this program works with it"
            )
            return
        steps_run = schema.apply(conn, say=said.append if form == "json" else print)
    if form == "json":
        print(as_json({"steps": steps_run, "said": said}))
