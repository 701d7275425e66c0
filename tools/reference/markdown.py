"""Markdown as these pages use it. Pure."""

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are escaped where the table would break."""
    lines = [_line(heads), _line(["---"] * len(heads)), *(_line([cell(text) for text in row]) for row in rows)]
    return "\n".join(lines)


def cell(text: str) -> str:
    """Text as it may stand in a table: one line, no bare `|`."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Text as code; empty stays empty."""
    return f"`{text}`" if text else ""


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
