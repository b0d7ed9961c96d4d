"""`sbp log`: show and check the log of a stopped range server, and repair damage."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import click

from sbp_core.cli import output
from sbp_core.cli.commands import Actions
from sbp_core.cli.options import PATH, json_option

log: Final = Actions("log", help="Check, show and repair the files of a stopped range server.")

_folder: Final = click.argument(
    "folder",
    type=PATH,
    metavar="DIR",
    help="Data folder of a range server, its log, or the data folder of `sbp serve`.",
)


@log.command("check", example="sbp log check /var/lib/sbp")
@_folder
@json_option
def check(folder: str, *, json: bool) -> int:
    """Read every byte of a log, and list damaged and lost records.

    The log is also compared with what the placement driver of the same `sbp serve` knows of it.
    Changes nothing. Exit code 1 if anything is damaged or lost.
    """
    from sbp_core.cli.stopped_log import find_logs, inspected, show

    is_intact = True
    for directory in find_logs(Path(folder)):
        with inspected(directory) as found:
            show(directory, found, is_json=json)
        is_intact = is_intact and found.is_intact
    return 0 if is_intact else 1


@log.command("repair", example="sbp log repair /var/lib/sbp")
@_folder
@json_option
def repair(folder: str, *, json: bool) -> int:
    """Make a damaged log usable again: drop the damaged parts, and keep the rest.

    Lists lost records, keeps the damaged files under another name (FILE.damaged-N), and writes new
    files with everything intact. An intact log is not changed.
    """
    from sbp_core.cli.stopped_log import DISK, described, find_logs, inspected, show
    from sbp_core.log.recovery.inspection import repair_log

    for directory in find_logs(Path(folder)):
        with inspected(directory) as found:
            if not json:
                show(directory, found, is_json=False)
            kept = repair_log(DISK, directory, found, time.time_ns() // 1_000_000)
        if json:
            output.write_json(described(directory, found) | {"kept": [str(path) for path in kept]})
            continue
        if found.faults:
            output.write_line("  repaired; the records above are lost, everything else is served")
        for path in kept:
            output.write_line(f"  kept as it was: {path}")
    return 0
