"""Where the program `poolkeeper` begins, and `python -m poolkeeper`: signals are heard before anything that takes time is imported."""

import sys

from poolkeeper import interrupts


def main() -> None:
    """Run the program; what the console script calls."""
    interrupts.install()
    from poolkeeper.cli import run

    code = run(sys.argv[1:])
    interrupts.over()
    sys.exit(code)


if __name__ == "__main__":
    main()
