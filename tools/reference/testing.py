"""docs/reference/testing.md: the testing kit, from its own docstrings."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from poolkeeper import pytest_plugin
from poolkeeper.testing import AsyncKit, Delivery, Point, TaskNow, arun_task
from poolkeeper.testing.kit import Happens, Wishes, _Kit
from reference.markdown import code, table

METHODS = (
    "submit",
    "deliver",
    "finish",
    "run",
    "run_twice",
    "assert_survives_crashes",
    "assert_survives_lease",
    "get",
    "cancel",
    "close",
)
FIXTURES = (
    "poolkeeper_kit",
    "poolkeeper_async_kit",
    "poolkeeper_dsn",
    "poolkeeper_template",
    "poolkeeper_server",
    "poolkeeper_place",
)
POINTS = ("start", "before_checkpoint", "after_checkpoint", "in_transaction", "before_settle", "after_settle")  # fmt: skip


class _Options:
    """What the plugin adds to pytest's own."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []

    def getgroup(self, _name: str, _title: str) -> "_Options":
        return self

    def addoption(self, name: str, *, help: str, **_more: Any) -> None:  # noqa: A002  (argparse's word)
        self.rows.append((code(name), help))

    def addini(self, name: str, help: str, **_more: Any) -> None:  # noqa: A002  (pytest's word)
        self.rows.append((f"{code(name)} (in pytest's settings)", help))


def page() -> str:
    """The page."""
    options = _Options()
    pytest_plugin.pytest_addoption(options)  # type: ignore[arg-type]
    return "\n".join(
        [
            "# The testing kit\n",
            "`from poolkeeper.testing import Kit, Point`; [how to test a handler](../how-to/test-a-handler.md). `Kit(app)` keeps tasks in this process,",
            "`Kit(app, dsn=…)` in a database made by the fixture `poolkeeper_dsn`; `policy` is what a TaskQueue's `spec` would say. `AsyncKit` is the same for",
            "tests that are coroutines: there `deliver`, `finish`, `run`, `run_twice` and the two `assert_…` are awaited.\n",
            "## Kit\n",
            table(("", "what it does"), [(code(_called(name)), _doc(_method(name))) for name in METHODS]),
            "\n`clock.now()` is the present time of the kit, `clock.advance(by)` lets seconds or a timedelta pass. `on` says where the tasks lie.\n",
            f"Wishes of a task are {_named(Wishes)}. What can happen to a delivery: {_named(Happens)}, each at a point.\n",
            "## Point\n",
            table(("point", "its name"), [(code(_point(name)), str(_made(name))) for name in POINTS]),
            "\n## What it returns\n",
            *(
                f"{_doc(kind)}\n\n`{kind.__name__}`: {', '.join(code(f.name) for f in fields(kind))}.\n"
                for kind in (Delivery, TaskNow)
            ),
            "## Without a kit\n",
            f"`run_task{_signature(arun_task)}`, in coroutines `arun_task`: {_doc(arun_task)}\n",
            "## Fixtures\n",
            table(("fixture", ""), [(code(name), _doc(getattr(pytest_plugin, name))) for name in FIXTURES]),
            "\n## Options of pytest\n",
            table(("option", ""), options.rows),
        ]
    )


def _method(name: str) -> Callable[..., Any]:
    return getattr(AsyncKit, name, None) or getattr(_Kit, name)  # type: ignore[no-any-return]


def _called(name: str) -> str:
    return f"{name}{_signature(_method(name))}"


def _signature(function: Callable[..., Any]) -> str:
    """Names and defaults, without types."""
    given = inspect.signature(function)
    bare = [one.replace(annotation=inspect.Parameter.empty) for name, one in given.parameters.items() if name != "self"]
    return str(inspect.Signature(bare))


def _doc(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").split())


def _named(kind: Any) -> str:
    return ", ".join(code(name) for name in kind.__annotations__)


def _made(name: str) -> Point:
    point = getattr(Point, name)
    return point if isinstance(point, Point) else point(1)


def _point(name: str) -> str:
    return f"Point.{name}" if isinstance(getattr(Point, name), Point) else f"Point.{name}(1)"
