"""Fixtures of this layer; see fixtures/stage.py, fixtures/nodes.py, fixtures/apiproxy.py and fixtures/identities.py."""

from fixtures.apiproxy import make_proxy, proxy
from fixtures.faulty import faulty, hasty
from fixtures.identities import make_identity
from fixtures.nodes import nodes
from fixtures.stage import crds, operator, stage, start_operator

__all__ = [
    "crds",
    "faulty",
    "hasty",
    "make_identity",
    "make_proxy",
    "nodes",
    "operator",
    "proxy",
    "stage",
    "start_operator",
]
