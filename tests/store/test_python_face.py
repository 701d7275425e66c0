"""Whatever a program hands to the Python face: a verdict, or a code and a sentence that names the argument (contract 9, Q8)."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from poolkeeper import AsyncClient, Client, PoolkeeperError, RetryAfter, Snooze
from store.conftest import broken_invariants
from store.facing import NIL, VALUES, attempts, fault
from store.scene import Scene


class Sync:
    """The face of AsyncClient without its coroutines, in an event loop of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: AsyncClient) -> None:
        self._loop, self._client = loop, client

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **given: Any) -> Any:
            made: Coroutine[Any, Any, Any] = getattr(self._client, name)(*args, **given)
            return self._loop.run_until_complete(made)

        return call


@pytest.mark.parametrize("face", [Client, pytest.param(AsyncClient, marks=pytest.mark.wide)])
def test_no_argument_of_the_python_face_does_harm(bare_scene: Scene, face: type[Any]) -> None:
    """C46, C54, contract 9: each argument in turn, with each kind of value; the client goes on working after each."""
    scene = bare_scene
    scene.queue("q")
    scene.actor("submitter")  # makes the login
    found = []
    with asyncio.Runner() as runner:
        client = face(dsn=scene.database.dsn_as("submitter"))
        asked = Sync(runner.get_loop(), client) if face is AsyncClient else client
        for name, words, attempt in attempts(asked, scene.submit):
            wrong = fault(name, attempt)
            found += [f"{words}: {wrong}"] if wrong else []
        assert asked.submit("q", "a.b", "as before").code is None
        asked.close()
    assert not found, "\n".join(found)
    assert broken_invariants(scene.owner) == {}


@pytest.mark.parametrize("words", VALUES)
def test_what_is_no_dsn_no_connection_and_no_duration_is_said(words: str) -> None:
    """C54: the code where it may come from a file or a person, a TypeError or ValueError of one sentence where it is the program."""

    def ask(**given: Any) -> None:
        with Client(**given) as client:
            client.get(NIL)

    async def ask_async() -> None:
        async with AsyncClient(VALUES[words]()) as client:
            await client.get(NIL)

    def said(attempt: Callable[[], object]) -> str:
        with pytest.raises((PoolkeeperError, TypeError, ValueError)) as raised:
            attempt()
        return str(raised.value)

    if words != "None":
        assert re.search("DSN|database", said(lambda: ask(dsn=VALUES[words]())))
    assert "connection" in said(lambda: ask(connection=VALUES[words]())).lower()
    assert "connection" in said(lambda: asyncio.run(ask_async())).lower()
    if words not in {"0", "1.5", "10**30"}:
        for ending in (Snooze, RetryAfter):
            assert said(partial(ending, VALUES[words]())).startswith("seconds must be a finite number")
