"""The store through `psql` alone: a worker in no language of ours, with EXECUTE and nothing else."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from fixtures.layers import cannot_run


def program() -> str:
    """The `psql` beside the server under test, else the one on the PATH."""
    if not os.environ.get("POOLKEEPER_TEST_DSN"):
        from lab import postgres_binaries

        beside = Path(postgres_binaries.find().folder) / "psql"
        if beside.exists():
            return str(beside)
    found = shutil.which("psql")
    if found is None:
        cannot_run("no psql beside the server nor on the PATH; apt-get install postgresql-client")
    return found


class Psql:
    """One login; each call is a program of its own, values are psql's own variables, quoted by it."""

    def __init__(self, dsn: str) -> None:
        given = conninfo_to_dict(dsn)
        names = {"host": "PGHOST", "port": "PGPORT", "dbname": "PGDATABASE", "user": "PGUSER", "password": "PGPASSWORD"}
        self._environment = {**os.environ, **{env: str(given[key]) for key, env in names.items() if given.get(key)}}
        self._program = program()

    def rows(self, statement: str, **values: Any) -> list[dict[str, Any]]:
        """The rows of a statement in which `:'name'` stands for a value; raises with psql's own words."""
        said = self.tell(f"SELECT coalesce(json_agg(to_jsonb(x)), '[]') FROM ({statement}) AS x;", **values)
        return list(json.loads(said))

    def row(self, statement: str, **values: Any) -> dict[str, Any]:
        """The one row."""
        (row,) = self.rows(statement, **values)
        return row

    def tell(self, script: str, **values: Any) -> str:
        """What psql prints for a script."""
        texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}
        done = subprocess.run(
            [self._program, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1",
             *(part for k, v in texts.items() for part in ("-v", f"{k}={v}"))],
            input=script, text=True, capture_output=True, env=self._environment, check=False, timeout=60,
        )  # fmt: skip
        if done.returncode:
            raise PsqlError(done.stderr)
        return done.stdout.strip()


class PsqlError(Exception):
    """psql ended with an error; the text is its own."""
