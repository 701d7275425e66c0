"""`python -m reference [--write FOLDER]`: print the names of pages that differ, or write them."""

import sys
from pathlib import Path

import click

from reference.pages import pages

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"


@click.command(help=__doc__)
@click.option("--write", "folder", type=click.Path(path_type=Path, file_okay=False), help="write the pages there")
def main(folder: Path | None) -> None:
    """Entry point; without --write the exit code is 1 when a committed page differs."""
    differing = [name for name, text in pages().items() if _present((folder or FOLDER) / name) != text]
    for name in differing:
        print(name)
        if folder is not None:
            (folder / name).write_text(pages()[name])
    sys.exit(1 if differing and folder is None else 0)


def _present(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    main()
