"""docs/reference/cli.md: every command of the program `poolkeeper`, from click itself."""

import click

from poolkeeper.cli import cli
from reference.markdown import cell, code, table


def page() -> str:
    """The page."""
    parts = [
        "# Command line\n",
        "One program, `poolkeeper`. Verbs that need Kubernetes come with the extra `operator`.",
        "Exit codes are in [codes](codes.md). `-h` and `--help` work everywhere.\n",
    ]
    with click.Context(cli, info_name="poolkeeper") as context:
        for name in sorted(cli.list_commands(context)):
            command = cli.get_command(context, name)
            if command is not None:
                parts += _described(command, context)
    return "\n".join(parts)


def _described(command: click.Command, parent: click.Context) -> list[str]:
    context = click.Context(command, info_name=command.name, parent=parent)
    if isinstance(command, click.Group):
        below = [command.get_command(context, name) for name in sorted(command.list_commands(context))]
        return [part for each in below if each is not None and not each.hidden for part in _described(each, context)]
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"## {context.command_path}\n", f"{_help(command)}\n", f"```text\n{usage}\n```\n"]
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    if options:
        parts.append(table(("option", "meaning"), ((_names(one), _meaning(one)) for one in options)) + "\n")
    return parts


def _help(command: click.Command) -> str:
    paragraphs = (command.help or "").replace("\b", "").strip().split("\n\n")
    return "\n\n".join(cell(paragraph) for paragraph in paragraphs)


def _names(option: click.Option) -> str:
    return ", ".join(code(name) for name in [*option.opts, *option.secondary_opts])


def _meaning(option: click.Option) -> str:
    kind = option.type
    choices = f" One of {', '.join(str(one) for one in kind.choices)}." if isinstance(kind, click.Choice) else ""
    default = f" Default: {option.default}." if option.show_default and option.default not in {None, False} else ""
    required = " Required." if option.required else ""
    repeated = " May be repeated." if option.multiple and "repeated" not in (option.help or "") else ""
    return f"{option.help or ''}{choices}{default}{required}{repeated}".strip()
