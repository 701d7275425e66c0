"""Fixtures of this layer; see fixtures/stage.py, fixtures/apiproxy.py and fixtures/identities.py."""

from fixtures.apiproxy import make_proxy, proxy
from fixtures.faulty import faulty, hasty
from fixtures.identities import make_identity
from fixtures.stage import crds, operator, stage, start_operator

__all__ = [
    "crds",
    "faulty",
    "hasty",
    "make_identity",
    "make_proxy",
    "operator",
    "proxy",
    "stage",
    "start_operator",
]
