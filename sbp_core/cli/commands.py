"""Groups of commands: such that import a command when it is called, and commands with actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem

COMPLETE_VARIABLE: Final = "_SBP_COMPLETE"
"""Variable of the environment by which a shell asks what could follow."""


class Listed(NamedTuple):
    """A command in a list: its name, the "module:attribute" that it is, and a line of help."""

    name: str
    declared_in: str
    help: str


class LateCommands(click.Group):
    """A group that imports a command when it is called, so that `sbp --help` answers at once."""

    def __init__(self, listed: Sequence[Listed], **settings: Any) -> None:
        super().__init__(**settings)
        self._listed = {each.name: each for each in listed}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the list."""
        return [*self._listed]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command, and return it."""
        listed = self._listed.get(cmd_name)
        if listed is None:
            return None
        module, _, attribute = listed.declared_in.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that a line calls: an action of a command, if it names one."""
        if args[0] not in self._listed and not ctx.resilient_parsing:
            raise click.exceptions.NoSuchCommand(args[0], possibilities=self._listed, ctx=ctx)
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, CommandWithActions) and rest[:1] and rest[0] in command.actions:
            command = Actions(command.name, command.actions)
        return name, command, rest

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin so, without an import."""
        commands = [
            CompletionItem(each.name, help=each.help)
            for each in self._listed.values()
            if each.name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the lines of help, without an import."""
        with formatter.section("Commands"):
            formatter.write_dl([(each.name, each.help) for each in self._listed.values()])


class Command(click.Command):
    """A command whose help begins with an example."""

    def __init__(self, *arguments: Any, example: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.example = example

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example, then how the command is called."""
        formatter.write(f"Example: {self.example}\n\n")
        super().format_usage(ctx, formatter)


class Actions(click.Group):
    """A command that does nothing without an action, such as `create` of `sbp streams`."""

    command_class = Command

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.subcommand_metavar = "ACTION [ARGS]..."

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the action that a line calls; name all actions if it calls none of them."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            if error.possibilities:
                raise
            text = f"{error.message} The actions are {', '.join(self.commands)}."
            raise click.exceptions.NoSuchCommand(args[0], text, ctx=ctx) from error


class CommandWithActions(Command):
    """A command that does something by itself, and has actions: `sbp txns`, `sbp txns give-up`.

    A first argument that is the name of an action calls that. `sbp txns -- give-up` is the command.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.actions: dict[str, click.Command] = {}

    def action(self, name: str, *, example: str) -> Callable[[Callable[..., int]], click.Command]:
        """Declare an action, as `click.Group.command` does."""

        def declare(run: Callable[..., int]) -> click.Command:
            declared = click.command(name, cls=Command, example=example)(run)
            self.actions[name] = declared
            return declared

        return declare

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the actions."""
        with formatter.section("Actions"):
            shown = [(name, each.get_short_help_str()) for name, each in self.actions.items()]
            formatter.write_dl(shown)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return what may follow: options, and actions."""
        actions = complete_action(ctx, None, incomplete)
        return [*actions, *super().shell_complete(ctx, incomplete)]


def complete_action(
    ctx: click.Context, param: click.Parameter | None, incomplete: str
) -> list[CompletionItem]:
    """Return the actions that may stand where the first argument of a command does."""
    actions = ctx.command.actions if isinstance(ctx.command, CommandWithActions) else {}
    return [CompletionItem(name) for name in actions if name.startswith(incomplete)]
