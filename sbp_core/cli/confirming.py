"""The guard of commands that destroy data: without `--yes` they only show what would happen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click

from sbp_core.cli.output import write_json, write_line, write_lines

yes_option: Final = click.option("--yes", is_flag=True, help="Do it, after it is shown.")
"""Declare `--yes`."""


def write_effects(
    effects: Sequence[tuple[Mapping[str, object], Sequence[str]]],
    verb: str,
    *,
    is_done: bool,
    is_json: bool,
) -> None:
    """Write what a command did or would do: objects with `done` for programs, else lines."""
    for value, texts in effects:
        if is_json:
            write_json({**value, "done": is_done})
        else:
            write_lines(texts)
    if not is_done and not is_json:
        write_line(f"nothing is {verb} yet: repeat this with --yes")
