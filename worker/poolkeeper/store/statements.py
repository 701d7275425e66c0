"""SQL text from the ``.sql`` files beside this module; no statement is assembled from strings."""

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def sql_file(path: str) -> str:
    """Text of one file below ``store/sql``."""
    return files(__package__).joinpath("sql").joinpath(path).read_text(encoding="utf-8")


def sql_names(folder: str) -> list[str]:
    """Names of the ``.sql`` files of a folder below ``store/sql``, in their order."""
    return sorted(
        f.name for f in files(__package__).joinpath("sql").joinpath(folder).iterdir() if f.name.endswith(".sql")
    )


@cache
def statements(path: str) -> dict[str, str]:
    """Named statements of a file: each begins with a line ``-- name: verb``."""
    parts = _NAME.split(sql_file(path))
    return {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}
