"""The program `poolkeeper`: one group, its verbs loaded when they are called (contract 16).

Guarantees: `poolkeeper submit` imports neither worker nor operator; verbs that need Kubernetes come from the entry-point
group `poolkeeper.commands` and are named even where their extra is not installed. Every error of ours is one line on
stderr with its code, and the exit code of the contract; so is one that nobody thought of (exit code 1).
"""

import importlib
import os
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

from poolkeeper.cli.output import described, tell
from poolkeeper.codes import Code
from poolkeeper.errors import Misconfigured, PoolkeeperError

GROUP = "poolkeeper.commands"
FAILED = 1
INTERRUPTED = 130

OURS = {
    "worker": ("poolkeeper.cli.worker:worker", "Run a worker process."),
    "migrate": ("poolkeeper.cli.migrate:migrate", "Show, check or apply the schema's migrations."),
    "submit": ("poolkeeper.cli.submit:submit", "Submit one task."),
    "task": ("poolkeeper.cli.task:task", "Look at one task, cancel or requeue it."),
    "dlq": ("poolkeeper.cli.dlq:dlq", "List dead letters, requeue or discard them."),
    "queue": ("poolkeeper.cli.queue:queue", "Apply policies, list, pause and resume queues."),
    "schedule": ("poolkeeper.cli.schedule:schedule", "Set, list, pause and remove schedules of recurring tasks."),
    "db": ("poolkeeper.cli.db:db", "Accept a database that came back as another one."),
    "doctor": ("poolkeeper.cli.doctor:doctor", "Say what is wrong with the database, and what to do."),
    "maintain": ("poolkeeper.cli.maintain:maintain", "Remove now what is older than its retention."),
}
THEIRS = {
    "crds": "Print the CustomResourceDefinitions, ready for kubectl apply.",
    "operator": "Run the operator, which keeps the pools of a cluster.",
    "pool": "Look at worker pools.",
}
"""What verbs of other packages do, known without importing them."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed; their one-line help is known before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all verbs, ours first."""
        del ctx
        return [*OURS, *sorted(name for name in _foreign() if name not in OURS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the verb; a missing extra is a usage error that names the remedy."""
        del ctx
        if cmd_name in OURS:
            module, _, attribute = OURS[cmd_name][0].partition(":")
            return _command(getattr(importlib.import_module(module), attribute))
        entry = _foreign().get(cmd_name)
        if entry is None:
            return None
        try:
            return _command(entry.load())
        except ModuleNotFoundError as error:
            raise click.UsageError(
                f'"poolkeeper {cmd_name}" needs {error.name}; run: pip install "poolkeeper[operator]"'
            ) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs without importing any of them."""
        rows = [
            (name, OURS[name][1] if name in OURS else THEIRS.get(name, f"poolkeeper {name} --help says more."))
            for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _foreign() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _command(loaded: Any) -> click.Command:
    if not isinstance(loaded, click.Command):
        raise TypeError(f"entry points of {GROUP} name click commands, not a {type(loaded).__name__}")
    return loaded


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="poolkeeper")
def cli() -> None:
    """Poolkeeper: durable tasks on Postgres, worker pools on Kubernetes."""


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        code = _called(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our answer has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        tell(Misconfigured(Code.SETTING_INVALID, _unusable(error)))
        return Misconfigured.exit_code
    return code


def _called(arguments: list[str]) -> int:
    try:
        code = cli.main(arguments, prog_name="poolkeeper", standalone_mode=False)
    except PoolkeeperError as error:
        tell(error)
        return error.exit_code
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except OSError:
        raise
    except Exception as error:
        if os.environ.get("POOLKEEPER_LOG_LEVEL", "").lower() == "debug":
            raise
        print(f"error: unexpected: {described(error)}; with POOLKEEPER_LOG_LEVEL=debug it says where", file=sys.stderr)
        return FAILED
    return code if isinstance(code, int) else 0


def _unusable(error: OSError) -> str:
    what = f'file "{error.filename}"' if error.filename else "an input or output"
    return f"{what} cannot be used: {error.strerror or error}; check that it is there, its rights and the space"
