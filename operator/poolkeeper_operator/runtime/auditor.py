"""The audit as a part of the upkeep: a page of each database's tasks a minute, and what it finds as a metric (Q61).

Guarantees: an audit that fails delays nothing and is told once; what it finds is told once in a walk, with the first ids.
A walk begins anew when it is over, and when the operator is started.
"""

import collections
import logging
from collections.abc import Callable
from typing import Any

from poolkeeper.audit import Audit
from poolkeeper.errors import PoolkeeperError
from poolkeeper_operator.observe.link import Link
from poolkeeper_operator.runtime import metrics

PAGE = 500

log = logging.getLogger(__name__)


class Auditor:
    """One walk for each database at a time."""

    def __init__(self) -> None:
        self._walks: dict[tuple[str, str], Audit] = {}
        self._found: dict[tuple[str, str], collections.Counter[str]] = {}
        self._before: dict[tuple[str, str], collections.Counter[str]] = {}
        self._problems: dict[tuple[str, str], str] = {}

    async def page(self, link: Link) -> None:
        """Look at the next page of a database."""
        key = link.key
        walk = self._walks.setdefault(key, Audit())
        found = self._found.setdefault(key, collections.Counter())
        tasks = walk.looked_tasks
        call: Any = walk.next(PAGE)
        try:
            broken = walk.took(await link.call(call))
        except (PoolkeeperError, OSError) as error:
            self._say(log.warning, key, f"audit.failed: {link.name}: {error}; it is tried again each minute")
            return
        self._problems.pop(key, None)
        for one in broken:
            if one.invariant not in found:
                log.error("audit.broken: %s: %s: %s", link.name, one.invariant, ", ".join(one.first[:3]))
            found[one.invariant] += one.violations
        if walk.done:
            before = self._before.get(key, collections.Counter())
            self._before[key] = found
            shown = {name: found[name] for name in {*before, *found}}
            del self._walks[key], self._found[key]
        else:
            shown = dict(found | self._before.get(key, collections.Counter()))  # the larger of both
        metrics.tell_audit(*key, walk.looked_tasks - tasks, shown)

    def forget(self, namespace: str, database: str) -> None:
        """The Database is gone; another one of its name is looked at from the beginning."""
        key = (namespace, database)
        shown = {*self._before.pop(key, ()), *self._found.pop(key, ())}
        self._walks.pop(key, None)
        self._problems.pop(key, None)
        metrics.forget_audit(namespace, database, shown)

    def _say(self, say: Callable[[str], object], key: tuple[str, str], problem: str) -> None:
        if self._problems.get(key) != problem:
            self._problems[key] = problem
            say(problem)
