"""docs/reference/sql.md: the functions that make the contract, from the store's .sql files."""

from itertools import groupby

from reference import sqltext
from reference.markdown import cell

_INTRO = """# SQL contract

The store is the Postgres schema `poolkeeper`. Everything it promises is kept by the functions below; tables are granted to
nobody. A worker or submitter in any language keeps the promises by calling them. The Python package is a typed face on the same
functions (`worker/poolkeeper/store/calls.py`).

- A refusal is a row with a `code` (see [codes](codes.md)). An exception of SQLSTATE class `PK` means misuse: `PK400` bad
  argument, `PK401` unknown session, `PK403` this login may not do that.
- Who may call what follows from group roles: `poolkeeper_submitter`, `poolkeeper_worker`, `poolkeeper_operator`,
  `poolkeeper_reader`, `poolkeeper_person`. Grant one to a login, and give the login a row in `poolkeeper.access`, which says
  for which pool, queues and tenants it speaks. The schema's owner may do everything.
- Claiming functions need READ COMMITTED.
"""


def page() -> str:
    """The page."""
    grants = sqltext.grants()
    offered = [function for function in sqltext.functions() if function.name in grants]
    missing = set(grants) - {function.name for function in offered}
    if missing:
        raise LookupError(f"granted but not found in the function files: {', '.join(sorted(missing))}")
    parts = [_INTRO]
    for file, group in groupby(offered, key=lambda function: function.file):
        parts.append(f"## {file.split('_', 1)[1].removesuffix('.sql')}\n")
        parts.append(f"File: `worker/poolkeeper/store/sql/functions/{file}`.\n")
        if about := sqltext.about(file):
            parts.append(f"{about}\n")
        parts += [_one(function, grants[function.name]) for function in group]
    return "\n".join(parts)


def _one(function: sqltext.Function, roles: list[str]) -> str:
    returns = f"\n  RETURNS {function.returns}" if function.returns else ""
    comment = f"{cell(function.comment)}\n\n" if function.comment else ""
    return (
        f"### {function.name}\n\n{comment}May be called by: {', '.join(roles)}.\n\n"
        f"```sql\npoolkeeper.{function.name}({function.arguments}){returns}\n```\n"
    )
