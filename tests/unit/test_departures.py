"""Which pods are ended with less grace than their workers were told (O20)."""

from collections.abc import Mapping
from typing import Any

import pytest

from poolkeeper_operator.runtime.departures import shorter


def pod(uid: str, given: int | None, *, terminating: bool = True) -> dict[str, Any]:
    meta: dict[str, Any] = {"uid": uid}
    if terminating:
        meta["deletionTimestamp"] = "2026-11-29T20:00:00Z"
    if given is not None:
        meta["deletionGracePeriodSeconds"] = given
    return {"metadata": meta}


@pytest.mark.parametrize(("given", "told"), [(89, 89.0), (1, 1.0), (0, None), (90, None), (300, None), (None, None)])
def test_only_less_than_promised_is_news(given: int | None, told: float | None) -> None:
    assert shorter([pod("a", given)], 90).get("a") == told


def test_a_pod_that_stays_is_not_told_anything() -> None:
    assert shorter([pod("a", 5, terminating=False), pod("b", 5)], 90) == {"b": 5.0}


def test_a_node_that_shuts_down_deletes_nobody_and_its_pods_have_what_it_gives() -> None:
    """O20: the lesser of both counts where a pod is deleted as well."""
    pods = [pod("a", None, terminating=False), pod("b", 5), pod("c", 50), pod("d", None, terminating=False)]

    def left(each: Mapping[str, Any]) -> float | None:
        return None if each["metadata"]["uid"] == "d" else 15.0

    assert shorter(pods, 90, left) == {"a": 15.0, "b": 5.0, "c": 15.0}
    assert shorter(pods[:1], 10, left) == {}, "it has no more than it was promised"
