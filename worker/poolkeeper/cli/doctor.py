"""`poolkeeper doctor`: what is wrong with the database, and what to do; with `--audit` whether the store's invariants hold (Q61)."""

import sys
from typing import TYPE_CHECKING, Any

import click

from poolkeeper.cli.database import connected, dsn
from poolkeeper.cli.output import as_json, harmless, output

if TYPE_CHECKING:
    import psycopg

    from poolkeeper.audit import Audit

FAILED = 1
SHOWN = 20


@click.command()
@click.option("--audit", is_flag=True, help="Look at every task instead: whether the invariants of the store hold.")
@click.option("--after", "place", default=None, help="With --audit: go on at the place that an earlier one printed.")
@click.option(
    "--limit", type=click.IntRange(1), default=None, help="With --audit: stop after about so many tasks and keys."
)
@click.option(
    "--page",
    type=click.IntRange(1, 10_000),
    default=500,
    show_default=True,
    help="With --audit: tasks that one statement looks at.",
)
@dsn
@output
@click.pass_context
def doctor(
    ctx: click.Context, audit: bool, place: str | None, limit: int | None, page: int, dsn: str | None, form: str
) -> None:
    """Check database, schema, rights, clocks, settings and sessions; or, with --audit, the invariants of all tasks.

    Changes nothing. Exits with 1 where a fault was found. Works with every login, and says what it could not look at.
    """
    if not audit and (place is not None or limit is not None):
        raise click.UsageError("--after and --limit go with --audit")
    if audit:
        ctx.exit(_audit(place, limit, page, dsn, form))
    from poolkeeper.doctor import Verdict, examine

    with connected(dsn, any_schema=True) as conn:
        found = examine(conn)
    if form == "json":
        print(as_json(found))
    else:
        for one in found:
            print(f"{one.verdict:15}{one.check:21}{harmless(one.sentence)}")
            if one.remedy:
                print(f"{'':15}{'what to do:':21}{harmless(one.remedy)}")
    ctx.exit(FAILED if any(one.verdict is Verdict.FAULT for one in found) else 0)


def _audit(place: str | None, limit: int | None, page: int, dsn: str | None, form: str) -> int:
    from poolkeeper.audit import Audit

    try:
        walk = Audit() if place is None else Audit.at(place)
    except (ValueError, TypeError, AttributeError) as error:
        raise click.BadParameter(
            "is no place that an audit printed, such as tasks:ID or keys:0", param_hint="--after"
        ) from error
    found: dict[str, dict[str, Any]] = {}
    try:
        with connected(dsn) as conn:
            _walk(conn, walk, found, limit, page)
    except KeyboardInterrupt:
        if walk.place:
            print(f"interrupted; go on with: poolkeeper doctor --audit --after '{walk.place}'", file=sys.stderr)
        raise
    _tell(walk, found, form)
    return FAILED if found else 0


def _walk(
    conn: "psycopg.Connection[Any]", walk: "Audit", found: dict[str, dict[str, Any]], limit: int | None, page: int
) -> None:
    while not walk.done and (limit is None or walk.looked_tasks + walk.looked_keys < limit):
        left = page if limit is None else min(page, limit - walk.looked_tasks - walk.looked_keys)
        for broken in walk.step(conn, left):
            row = found.setdefault(broken.invariant, {"invariant": broken.invariant, "violations": 0, "first": []})
            row["violations"] += broken.violations
            row["first"] = [*row["first"], *broken.first][:SHOWN]


def _tell(walk: "Audit", found: dict[str, dict[str, Any]], form: str) -> None:
    if form == "json":
        told = {
            "tasks": walk.looked_tasks,
            "keys": walk.looked_keys,
            "done": walk.done,
            "after": walk.place or None,
            "broken": [*found.values()],
        }
        print(as_json(told))
        return
    for row in found.values():
        print(f"broken: {row['invariant']}: {row['violations']} times")
        for subject in row["first"]:
            print(f"  {subject}")
    print(f"{walk.looked_tasks} tasks and {walk.looked_keys} keys: {len(found) or 'no'} invariants broken")
    if not walk.done:
        print(f"not the end; go on with: poolkeeper doctor --audit --after '{walk.place}'")
