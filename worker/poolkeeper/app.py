"""Registering handlers: `app = Poolkeeper()`, `@app.task("orders.confirm")` (Q46).

The rule of signatures: the first parameter is the payload, validated against its annotation by pydantic; a second
one, if there is one, is the context. Guarantees: a doubled type, a bad name or another signature fails at import,
naming both places. Does not run anything: workers and the testing kit call `Handler.payload` and `Handler.function`.
"""

import inspect
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from poolkeeper import jsonsafe
from poolkeeper.codes import Code
from poolkeeper.errors import Misconfigured

if TYPE_CHECKING:
    from pydantic import TypeAdapter

TASK_TYPE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)*")
MAX_TASK_TYPE = 100

Isolation = Literal["process"]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Handler:
    """One registered handler: what it is called for and how."""

    type: str
    function: Callable[..., Any]
    is_async: bool
    takes_context: bool
    annotation: Any
    isolation: Isolation | None
    checkpoint_version: int

    @cached_property
    def _adapter(self) -> "TypeAdapter[Any] | None":
        if self.annotation is Any:
            return None
        from pydantic import TypeAdapter

        return TypeAdapter(self.annotation)

    def payload(self, stored: Any) -> Any:
        """Return the stored payload as what the signature asks for; raises pydantic.ValidationError."""
        adapter = self._adapter
        return stored if adapter is None else adapter.validate_python(stored)

    @staticmethod
    def result(returned: Any) -> Any:
        """Return a copy of what the handler returned as JSON; raises Refused `payload_invalid` with the path, or `payload_too_large`."""
        if inspect.iscoroutine(returned):
            returned.close()
            raise TypeError("the handler is no coroutine function but returned a coroutine; declare it with async def")
        return None if returned is None else jsonsafe.kept(returned, "result", Code.PAYLOAD_TOO_LARGE)

    @property
    def place(self) -> str:
        """Where the handler is written, for messages."""
        code = inspect.unwrap(self.function).__code__
        return f"{self.function.__module__}.{self.function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"


class Poolkeeper:
    """The handlers of one application; `poolkeeper worker module:app` works off their tasks."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    @property
    def handlers(self) -> dict[str, Handler]:
        """All registered handlers by task type."""
        return dict(self._handlers)

    def task(self, type: str, *, isolation: Isolation | None = None, checkpoint_version: int = 1) -> Callable[[F], F]:  # noqa: A002
        """Register the decorated function, async or sync, as the handler of tasks of `type`.

        Sync handlers run in threads; `isolation="process"` runs a handler of either kind in a child process, for native
        code that holds the interpreter lock or may die. `checkpoint_version` is stored with every checkpoint.
        Raises Misconfigured `duplicate_type`, ValueError for the name, TypeError for the signature.
        """
        _check_type(type)
        if isolation not in {None, "process"}:
            raise ValueError(f'task type "{type}": isolation is None or "process", not {isolation!r}')

        def register(function: F) -> F:
            handler = _handler(type, function, isolation, checkpoint_version)
            known = self._handlers.get(type)
            if known is not None:
                raise Misconfigured(
                    Code.DUPLICATE_TYPE,
                    f'task type "{type}" has two handlers, {known.place} and {handler.place}; rename one of them',
                )
            self._handlers[type] = handler
            return function

        return register


def _check_type(name: str) -> None:
    if len(name) > MAX_TASK_TYPE or not TASK_TYPE.fullmatch(name):
        raise ValueError(
            f"task type {name!r} must be words of a-z, 0-9 and _ joined by dots, at most {MAX_TASK_TYPE} characters"
        )


def _handler(name: str, function: Callable[..., Any], isolation: Isolation | None, version: int) -> Handler:
    parameters = list(inspect.signature(function).parameters.values())
    positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    required = [one for one in parameters if one.default is inspect.Parameter.empty]
    if not 1 <= len(parameters) <= 2 or any(one.kind not in positional for one in required):  # noqa: PLR2004
        raise TypeError(
            f'task type "{name}": {function.__qualname__} must take the payload and, if it wants it, the context: (payload) or (payload, ctx)'
        )
    hints = typing.get_type_hints(function, include_extras=True)
    return Handler(
        type=name,
        function=function,
        is_async=inspect.iscoroutinefunction(function),
        takes_context=len(parameters) == 2,  # noqa: PLR2004
        annotation=hints.get(parameters[0].name, Any),
        isolation=isolation,
        checkpoint_version=version,
    )
