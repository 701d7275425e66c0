"""`python -m poolkeeper` is `poolkeeper`."""

from poolkeeper.cli import main

if __name__ == "__main__":
    main()
