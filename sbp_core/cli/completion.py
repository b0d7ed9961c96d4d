"""`sbp completion`: what a shell runs to complete command lines of `sbp`."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from sbp_core.cli.commands import COMPLETE_VARIABLE, Command
from sbp_core.cli.output import write_lines

_SHELLS: Final[dict[str, type[ShellComplete]]] = {
    each.name: each for each in (BashComplete, ZshComplete, FishComplete)
}


@click.command(cls=Command, example="sbp completion bash")
@click.argument("shell", type=click.Choice([*_SHELLS]), metavar="SHELL", help="bash, zsh or fish.")
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print a script that lets a shell complete commands, options and names of streams.

    For bash, write it to ~/.local/share/bash-completion/completions/sbp; for zsh, to a file _sbp in
    a folder of $fpath; for fish, to ~/.config/fish/completions/sbp.fish.
    """
    made = _SHELLS[shell](context.find_root().command, {}, "sbp", COMPLETE_VARIABLE)
    # Not `source`, which runs the shell to find out its version.
    write_lines((made.source_template % made.source_vars()).splitlines())
    return 0
