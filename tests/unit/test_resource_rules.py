"""The models refuse what the API server refuses, so that an operator never acts on what a cluster without our rules let in (O4, O32)."""

import pytest

from fixtures.nonsense import BY_RULE, BY_SCHEMA, GOOD, SERVER_ONLY, changed, manifest
from poolkeeper_operator.resources import KINDS, ResourceError, read_spec

SPECS = {kind.name: kind.spec for kind in KINDS}


@pytest.mark.parametrize("kind", sorted(GOOD))
def test_a_good_object_is_read(kind):
    read_spec(SPECS[kind], manifest(kind, GOOD[kind]))


@pytest.mark.parametrize(("kind", "path", "value", "words"), BY_RULE)
def test_a_rule_has_a_twin_in_the_model(kind, path, value, words):
    with pytest.raises(ResourceError) as refused:
        read_spec(SPECS[kind], manifest(kind, changed(kind, path, value)))
    # Bounds say the offending value too, in words of their own.
    assert words.removeprefix("must be ") in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "path", "value", "words"), [r for r in BY_SCHEMA if (r[0], r[1], r[3]) not in SERVER_ONLY]
)
def test_a_bound_has_a_twin_in_the_model(kind, path, value, words):
    place = words.removeprefix('unknown field "').removesuffix('"')
    with pytest.raises(ResourceError) as refused:
        read_spec(SPECS[kind], manifest(kind, changed(kind, path, value)))
    assert place.removeprefix("spec.") in str(refused.value)
