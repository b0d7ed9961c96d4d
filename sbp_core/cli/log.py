"""`sbp log`: show and check the log of a stopped range server, and repair damage."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from sbp_core.cli import output
from sbp_core.cli.commands import Actions
from sbp_core.cli.options import PATH, json_option
from sbp_core.cli.progress import progress
from sbp_core.errors import ConfigurationError, LogError
from sbp_core.log.boundaries import START_NAME, read_high_water
from sbp_core.log.disk import OsDisk
from sbp_core.log.recovery.inspection import LogInspection, inspect_log, repair_log
from sbp_core.pd.log_marks import maybe_other_log
from sbp_core.pd.metadata.data_dir import has_metadata
from sbp_core.pd.metadata.sqlite_inspection import DRIVER_NAME, maybe_log_mark_of
from sbp_core.pd.model import LogMark
from sbp_core.rangeserver.identity import IDENTITY_NAME, Identity, check_log_is_there
from sbp_core.segment_format import maybe_segment_base
from sbp_core.wording import counted

_DISK: Final = OsDisk()
_LOG_NAME: Final = "log"
_SERVER_PREFIX: Final = "range-server-"
_SERVER_NAME: Final = re.compile(rf"{_SERVER_PREFIX}(0|[1-9][0-9]{{0,5}})", re.ASCII)


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
    is_intact = True
    for directory in find_logs(Path(folder)):
        with _inspected(directory) as found:
            _show(directory, found, is_json=json)
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
    for directory in find_logs(Path(folder)):
        with _inspected(directory) as found:
            if not json:
                _show(directory, found, is_json=False)
            kept = repair_log(_DISK, directory, found, time.time_ns() // 1_000_000)
        if json:
            output.write_json(
                _inspection(directory, found) | {"kept": [str(path) for path in kept]}
            )
            continue
        if found.faults:
            output.write_line("  repaired; the records above are lost, everything else is served")
        for path in kept:
            output.write_line(f"  kept as it was: {path}")
    return 0


def find_logs(folder: Path) -> list[Path]:
    """Return the folders of the logs that `folder` stands for.

    It is a log, the data folder of a range server, or that of `sbp serve`. Raises
    ConfigurationError if it is none of these.
    """
    try:
        names = [path.name for path in folder.iterdir()]
        servers = sorted(
            int(found[1])
            for found in map(_SERVER_NAME.fullmatch, names)
            if found and _has_log(folder / found[0])
        )
        if servers:
            return [folder / f"{_SERVER_PREFIX}{index}" / _LOG_NAME for index in servers]
        if _has_log(folder):
            return [folder / _LOG_NAME]
        if any(name == START_NAME or maybe_segment_base(name) is not None for name in names):
            return [folder]
    except OSError as error:
        raise ConfigurationError(
            f"{folder} cannot be read: {error.strerror}; name a folder that this user can read"
        ) from error
    raise ConfigurationError(
        f"{folder} has no log; name the data folder of a range server, the folder {_LOG_NAME!r}"
        " in it, or the data folder of `sbp serve`"
    )


def _has_log(server: Path) -> bool:
    """Whether a folder is that of a range server, which has a log, or should have one."""
    return (server / _LOG_NAME).is_dir() or (server / IDENTITY_NAME).exists()


@contextmanager
def _inspected(directory: Path) -> Iterator[LogInspection]:
    """Lock a log against servers and inspect it, also by what its placement driver knows of it.

    Raises LogError, also if the log is not there, or another one is.
    """
    identity = check_log_is_there(directory.parent, _DISK)
    with _locked(directory):
        promise = None if identity is None else _maybe_promise(directory, identity)
        if promise is None:
            yield _inspect(directory)
            return
        mark, _ = read_high_water(_DISK, directory)
        other = None if mark is None else maybe_other_log(promise, mark.log_id)
        if other is not None:
            raise LogError(other)
        yield _inspect(directory, promise.position)


def _inspect(directory: Path, promised: int = 0) -> LogInspection:
    with progress("segments") as report:
        return inspect_log(
            *(_DISK, directory),
            promised=promised,
            on_segment=lambda done, count: report(done, count, ""),
        )


def _maybe_promise(directory: Path, identity: Identity) -> LogMark | None:
    """Return what the placement driver of the same `sbp serve` knows of a log, None if nothing.

    Metadata that are damaged, or of another cluster, do not count.
    """
    driver = directory.absolute().parent.parent / DRIVER_NAME
    if not has_metadata(driver):
        return None
    try:
        return maybe_log_mark_of(driver, identity.cluster_id, identity.server_id)
    except ConfigurationError as error:
        output.write_notice(f"{directory}: not compared with the placement driver: {error}")
        return None


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock the log against servers. Raises LogError while one has it open."""
    try:
        lock = _DISK.lock_directory(directory)
    except BlockingIOError as error:
        raise LogError(
            f"the log in {directory} is in use by a server; stop the server first"
        ) from error
    except OSError as error:
        raise LogError(f"{directory} cannot be locked: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def _inspection(directory: Path, found: LogInspection) -> dict[str, object]:
    tail = found.torn_tail
    return {
        "log": str(directory),
        "is_intact": found.is_intact,
        "segments": found.segment_count,
        "ranges": len(found.ranges),
        "batches": found.batch_count,
        "damage": [str(each) for each in found.faults],
        "lost": [str(each) for each in found.lost],
        "torn_tail": None
        if tail is None
        else {"file": str(tail.path), "position": tail.position, "bytes": tail.cut_bytes},
    }


def _show(directory: Path, found: LogInspection, *, is_json: bool) -> None:
    if is_json:
        output.write_json(_inspection(directory, found))
        return
    verdict = "intact" if found.is_intact else "damaged" if found.faults else "incomplete"
    output.write_line(
        f"{directory}: {verdict}; {counted(found.segment_count, 'segment')},"
        f" {counted(len(found.ranges), 'range')}, {counted(found.batch_count, 'batch')}"
    )
    for fault in found.faults:
        output.write_line(f"  {fault}")
    for records in found.lost:
        output.write_line(f"  lost: {records}")
    if found.torn_tail is not None:
        tail = found.torn_tail
        output.write_line(
            f"  {tail.path} has a torn tail of {tail.cut_bytes} bytes from log position"
            f" {tail.position} on, which was never synced; the next start cuts it off"
        )
