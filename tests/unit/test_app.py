"""Q46: registering handlers; the rule of signatures."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from poolkeeper import Context, Misconfigured, Poolkeeper
from poolkeeper.codes import Code


class Order(BaseModel):
    id: int
    note: str = ""


def test_a_doubled_type_names_both_handlers() -> None:
    """Contract 2, duplicate_type: neither of the two wins silently."""
    app = Poolkeeper()

    @app.task("orders.confirm")
    async def first(order: Order) -> None: ...

    with pytest.raises(Misconfigured, match=r"first .*test_app.py:\d+.* and .*second .*test_app.py:\d+") as raised:

        @app.task("orders.confirm")
        async def second(order: Order) -> None: ...

    assert raised.value.code == Code.DUPLICATE_TYPE
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("name", ["", "Orders", "orders.", ".orders", "orders..x", "1x", "a b", "ä", "a\n", "x" * 101])
def test_a_type_that_the_store_would_refuse_is_refused_at_import(name: str) -> None:
    """Contract 10: the same rule as the column's constraint."""
    with pytest.raises(ValueError, match="task type"):
        Poolkeeper().task(name)


@pytest.mark.parametrize("name", ["a", "orders.confirm", "a1_b.c2", "x" * 100])
def test_good_types_are_taken(name: str) -> None:
    """Contract 10."""
    app = Poolkeeper()
    app.task(name)(lambda payload: payload)
    assert list(app.handlers) == [name]


def test_the_first_parameter_is_the_payload_the_second_the_context() -> None:
    """Q46: the payload is validated against its annotation, whatever pydantic understands."""
    app = Poolkeeper()

    @app.task("a")
    def with_model(order: Order, ctx: Context) -> None: ...

    @app.task("b")
    async def with_builtin(numbers: list[int]) -> None: ...

    @app.task("c")
    def without_annotation(anything) -> None: ...

    a, b, c = (app.handlers[name] for name in "abc")
    assert (a.takes_context, a.is_async) == (True, False)
    assert (b.takes_context, b.is_async) == (False, True)
    assert a.payload({"id": "7"}) == Order(id=7)
    assert b.payload(["1", 2]) == [1, 2]
    assert c.payload({"x": [None]}) == {"x": [None]}
    with pytest.raises(ValidationError):
        a.payload({"id": "seven"})
    with pytest.raises(ValidationError):
        b.payload(5)


@pytest.mark.parametrize(
    "function",
    [lambda: None, lambda a, b, c: (a, b, c), lambda *, payload: payload],
    ids=["none", "three", "keyword"],
)
def test_another_signature_is_refused_at_import(function: Any) -> None:
    """Q46: with the two that are right."""
    with pytest.raises(TypeError, match=r"\(payload\) or \(payload, ctx\)"):
        Poolkeeper().task("a")(function)


def test_an_unknown_isolation_is_refused() -> None:
    """Q46: a typo must not mean "no isolation"."""
    with pytest.raises(ValueError, match="isolation"):
        Poolkeeper().task("a", isolation="proces")  # type: ignore[arg-type]
