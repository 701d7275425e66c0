"""Fixtures of this layer; see fixtures/stage.py."""

from fixtures.stage import crds, operator, stage, start_operator

__all__ = ["crds", "operator", "stage", "start_operator"]
