"""The guard of commands that destroy data: without `--yes` they only show what would happen.

`sbp streams delete` and `sbp streams trim` ask on a terminal whether they shall go on.
"""

from __future__ import annotations

import sys
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


def is_confirmed(
    effects: Sequence[tuple[Mapping[str, object], Sequence[str]]], verb: str, *, is_json: bool
) -> bool:
    """Write what a command would do. Return whether the user, on a terminal, tells it to go on."""
    if is_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        write_effects(effects, verb, is_done=False, is_json=is_json)
        return False
    for _, texts in effects:
        write_lines(texts)
    if click.confirm("Go on?", err=True):
        return True
    write_line(f"nothing is {verb}")
    return False
