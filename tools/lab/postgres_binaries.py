"""Which Postgres programs to run, and as whom: those that the testing kit finds, with errors of the lab."""

from lab.errors import LabError
from poolkeeper.testing.postgres_binaries import Binaries, PostgresMissing, ids, parse_version
from poolkeeper.testing.postgres_binaries import find as find_binaries

__all__ = ["Binaries", "find", "ids", "parse_version"]


def find(wanted: str | None = None) -> Binaries:
    """The Postgres to use; `wanted` defaults to POOLKEEPER_TEST_PG."""
    try:
        return find_binaries(wanted)
    except PostgresMissing as error:
        raise LabError(str(error)) from error
