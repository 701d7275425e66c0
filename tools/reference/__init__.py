"""The pages of docs/reference that are made from the code: `python -m reference --write docs/reference`.

Guarantees: a page depends on this checkout alone, so the same tree gives the same bytes; tests/docs fails when a
committed page differs. Pages written by hand (requirements.md) are left alone.
"""

from reference.pages import pages

__all__ = ["pages"]
