"""docs/reference/settings.md: the environment of a worker, checked against what the worker really reads.

The meanings are written here; which variables there are is found by letting the worker read a recording environment.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from poolkeeper.errors import Misconfigured
from poolkeeper.worker import logs, settings
from reference.markdown import code, table


@dataclass(frozen=True)
class Setting:
    """One variable."""

    name: str
    default: str
    meaning: str


SETTINGS = (
    Setting("POOLKEEPER_APP", "required", "The application as `module:attribute`; the argument of `poolkeeper worker` wins."),
    Setting("POOLKEEPER_QUEUES", "required", "Queues to work off, separated by commas: `team-a/orders,team-a/mail`. A name without `/` is in the namespace `default`. `--queue` wins."),
    Setting("POOLKEEPER_DSN_FILE", "", "A file that holds the DSN, such as a mounted Secret. It is read for each new connection, so a rotated secret is picked up."),
    Setting("POOLKEEPER_DSN", "", "The DSN itself, where there is no such file. One of the two is required; `--dsn` wins."),
    Setting("POOLKEEPER_DIRECT_DSN_FILE", "", "A DSN past the pooler, for LISTEN, in a file."),
    Setting("POOLKEEPER_DIRECT_DSN", "", "The same as text."),
    Setting("POOLKEEPER_POOLER", "`none`", "`none` or `transaction`: what the DSN goes through. Through a transaction pooler and without a direct DSN workers poll instead of listening."),
    Setting("POOLKEEPER_TASK_TYPES", "all registered", "Task types to take, separated by commas."),
    Setting(
        "POOLKEEPER_TENANTS_ONLY", "all", 'Tenants whose tasks to take, as a JSON array: `["acme"]`. The login may narrow it.'
    ),
    Setting("POOLKEEPER_TENANTS_EXCEPT", "", "Tenants whose tasks not to take, as a JSON array."),
    Setting("POOLKEEPER_CONCURRENCY", code(str(settings.DEFAULT_CONCURRENCY)), "Slots: tasks that the process runs at once, 1 to 10000. `--concurrency` wins."),
    Setting("POOLKEEPER_POOL", "`local/<host>`", "The pool that the worker belongs to."),
    Setting("POOLKEEPER_BUILD", "version of the package", "Name of the build, recorded with every delivery."),
    Setting("POOLKEEPER_IMAGE", "", "Name of the image, recorded with the session."),
    Setting("POOLKEEPER_GRACE_PERIOD", f"`{settings.DEFAULT_GRACE:g}`", "Seconds between SIGTERM and the end of the process."),
    Setting("POOLKEEPER_HAND_BACK_MARGIN", f"`{settings.DEFAULT_MARGIN:g}`", "Seconds before that end at which unfinished tasks are handed back; never more than half the grace."),
    Setting("POOLKEEPER_POD_NAME", "", "Set by the operator: the pod of the session."),
    Setting("POOLKEEPER_POD_NAMESPACE", "", "Set by the operator."),
    Setting("POOLKEEPER_POD_UID", "", "Set by the operator."),
    Setting("POOLKEEPER_NODE_NAME", "", "Set by the operator."),
    Setting("POOLKEEPER_HTTP_ADDR", code(settings.DEFAULT_ADDRESS), "Where `/livez`, `/readyz` and `/metrics` answer. Port 0 takes a free one."),
    Setting("POOLKEEPER_LOG_FORMAT", "`text` on a terminal, else `json`", "`text` or `json`."),
    Setting("POOLKEEPER_LOG_LEVEL", "`info`", "`debug`, `info`, `warning` or `error`."),
)  # fmt: skip


class Recording(Mapping[str, str]):
    """An environment that notes what was asked for."""

    def __init__(self, content: dict[str, str]) -> None:
        self._content = content
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.asked.add(name)
        return self._content[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)


def variables() -> set[str]:
    """The variables that a worker reads at start."""
    both = {"POOLKEEPER_APP": "a:b", "POOLKEEPER_QUEUES": "q"}
    asked: set[str] = set()
    for more in (
        {"POOLKEEPER_DSN": "postgresql://h/d", "POOLKEEPER_DIRECT_DSN": "postgresql://h/d"},
        {"POOLKEEPER_DSN_FILE": "f", "POOLKEEPER_DIRECT_DSN_FILE": "f"},
    ):
        environment = Recording(both | more)
        settings.read_settings(environment)
        asked |= environment.asked
    unusable = Recording({"POOLKEEPER_LOG_FORMAT": "none"})  # refused before the process's own log is touched
    try:
        logs.set_up(unusable)
    except Misconfigured:
        asked |= unusable.asked
    return asked


def page() -> str:
    """The page; raises LookupError when it and the code name different variables."""
    described, read = {setting.name for setting in SETTINGS}, variables()
    if described != read:
        raise LookupError(
            f"described but not read: {sorted(described - read)}; read but not described: {sorted(read - described)}"
        )
    rows = ((code(s.name), s.default, s.meaning) for s in SETTINGS)
    return "\n".join(
        [
            "# Settings of a worker\n",
            "A worker is told everything by its environment. In a cluster the operator sets these variables; a template that sets",
            "`POOLKEEPER_*` itself is refused. A wrong value ends the process at once, with exit code 2 and a line that names the variable.\n",
            table(("variable", "default", "meaning"), rows),
            "\nThe commands other than `worker` read `POOLKEEPER_DSN_FILE` and `POOLKEEPER_DSN` alone.",
        ]
    )
