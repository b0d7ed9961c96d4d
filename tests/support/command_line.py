"""Reading a command line without running it."""

from __future__ import annotations

from typing import Any

import click

from sbp_core.cli import main


def parsed(name: str, *words: str) -> dict[str, Any]:
    """Return the options of a subcommand of `sbp`, by name."""
    sbp = main.command()
    command = sbp.get_command(click.Context(sbp), name)
    assert command is not None
    return command.make_context(name, [*words]).params
