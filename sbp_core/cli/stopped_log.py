"""The log of a stopped range server: it is found, locked, inspected and shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sbp_core.cli import output
from sbp_core.cli.progress import progress
from sbp_core.errors import ConfigurationError, LogError
from sbp_core.log.boundaries import START_NAME, read_high_water
from sbp_core.log.disk import OsDisk
from sbp_core.log.recovery.inspection import LogInspection, inspect_log
from sbp_core.pd.log_marks import maybe_other_log
from sbp_core.pd.metadata.data_dir import has_metadata
from sbp_core.pd.metadata.sqlite_inspection import DRIVER_NAME, maybe_log_mark_of
from sbp_core.pd.model import LogMark
from sbp_core.rangeserver.server_id import IDENTITY_NAME, Identity, check_log_is_there
from sbp_core.segment_format import maybe_segment_base
from sbp_core.wording import counted

DISK: Final = OsDisk()
_LOG_NAME: Final = "log"
_SERVER_PREFIX: Final = "range-server-"
_SERVER_NAME: Final = re.compile(rf"{_SERVER_PREFIX}(0|[1-9][0-9]{{0,5}})", re.ASCII)


def find_logs(folder: Path) -> list[Path]:
    """Return the folders of the logs that `folder` stands for.

    A folder is a log, the data folder of a range server, or that of `sbp serve`. Raises
    ConfigurationError for any other folder.
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
def inspected(directory: Path) -> Iterator[LogInspection]:
    """Lock a log against servers and inspect it, also by what its placement driver knows of it.

    Raises LogError, also if the log is not there, or another one is.
    """
    identity = check_log_is_there(directory.parent, DISK)
    with _locked(directory):
        promise = None if identity is None else _maybe_promise(directory, identity)
        if promise is None:
            yield _inspect(directory)
            return
        mark, _ = read_high_water(DISK, directory)
        other = None if mark is None else maybe_other_log(promise, mark.log_id)
        if other is not None:
            raise LogError(other)
        yield _inspect(directory, promise.position)


def _inspect(directory: Path, promised: int = 0) -> LogInspection:
    with progress("segments") as report:
        return inspect_log(
            *(DISK, directory),
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
        lock = DISK.lock_directory(directory)
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


def described(directory: Path, found: LogInspection) -> dict[str, object]:
    """Return what an inspection found, for programs."""
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


def show(directory: Path, found: LogInspection, *, is_json: bool) -> None:
    """Write the verdict on a log, and its damage."""
    if is_json:
        output.write_json(described(directory, found))
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
