"""The stage of every store test, and the invariants that hold at its end."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest
from psycopg import sql

from fixtures.neighbours import Crowd
from fixtures.postgres import Database
from poolkeeper.audit import Audit
from poolkeeper.store import calls, run
from store.scene import Scene
from store.walks import Walks


def broken_invariants(conn: psycopg.Connection) -> dict[str, list[str]]:
    """The invariants that do not hold, each with the first that break it: the product's own audit, to its end (Q61)."""
    found: dict[str, list[str]] = {}
    audit = Audit()
    while not audit.done:
        for broken in audit.step(conn, page=10_000):
            found.setdefault(broken.invariant, []).extend(broken.first)
    return found


@pytest.fixture(scope="session")
def stage(pg_template: Callable[[], Database]) -> Iterator[Database]:
    """The database of all scenes: emptied for each, since a clone and its logins cost more than most tests."""
    made = getattr(pg_template, "kept", pg_template)()  # `make mutate` keeps one from run to run
    yield made
    made.drop()


@pytest.fixture
def this_month_again(stage: Database) -> Iterator[None]:
    """For tests that go far into the future, since the stage is shared: the months of the history are those of today again."""
    yield
    with stage.connect() as conn:
        query = "SELECT relname FROM pg_class WHERE relname ~ '^(event|delivery)_standard_[0-9]{6}$'"
        there = [name for (name,) in conn.execute(query)]
        wanted = conn.execute("SELECT count(*) FROM poolkeeper.months('event', now()) WHERE wanted").fetchone()
        if len(there) == 6 and wanted == (0,):
            return
    with ExitStack() as stack:
        scene = Scene(stage, stack)
        scene.clear()
        for name in there:
            scene.owner.execute(sql.SQL("DROP TABLE poolkeeper.{}").format(sql.Identifier(name)))
        run(scene.owner, calls.maintain())


@pytest.fixture
def bare_scene(stage: Database) -> Iterator[Scene]:
    """A stage without a queue; at its end the invariants must hold."""
    with ExitStack() as stack:
        scene = Scene(stage, stack)
        scene.clear()
        yield scene
        assert broken_invariants(scene.owner) == {}


@pytest.fixture
def scene(bare_scene: Scene) -> Scene:
    """A stage with the queue `q` of defaults."""
    bare_scene.queue()
    return bare_scene


@pytest.fixture
def crowd(bare_scene: Scene) -> Crowd:
    """A stage full of neighbours, beside whom a test acts on one thing."""
    return Crowd(bare_scene)


@pytest.fixture(scope="module")
def walks_stage(stage: Database) -> Iterator[Callable[[], Walks]]:
    """Makes the stage of `walks`, once as long as no other test clears it: nothing that its tests do is committed."""
    with ExitStack() as stack:
        made: list[Walks] = []

        def there() -> Walks:
            if not made or not made[0].is_there():
                stack.close()
                scene = Scene(stage, stack)
                scene.clear()
                made[:] = [Walks(Crowd(scene))]
            return made[0]

        yield there


@pytest.fixture
def walks(walks_stage: Callable[[], Walks]) -> Iterator[Walks]:
    """The crowd with lanes that collide, in a transaction that is given up."""
    found = walks_stage()
    with found.owner.transaction(force_rollback=True):
        found.mix()
        yield found
    found.owner.execute("SELECT pg_stat_force_next_flush()")  # `make mutate` asks what was called
