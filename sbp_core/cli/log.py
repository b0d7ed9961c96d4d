"""`sbp log`: show and check the log of a stopped range server, and repair damage."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click

from sbp_core.cli import output
from sbp_core.cli.client_options import json_option
from sbp_core.cli.commands import Actions
from sbp_core.cli.progress import progress
from sbp_core.cli.values import NUMBER, PATH, POSITIVE
from sbp_core.errors import ConfigurationError, LogError
from sbp_core.log.boundaries import START_NAME, read_high_water
from sbp_core.log.disk import OsDisk, translate_os_error
from sbp_core.log.entry import Entry, Location
from sbp_core.log.recovery.inspection import LogInspection, inspect_log, repair_log
from sbp_core.log.segment import segment_bases
from sbp_core.log.segment_scan import Damage, SegmentScanner
from sbp_core.log.states.replicated_entries import decode_settled
from sbp_core.log.states.staged_entries import decode_end, decode_prefix
from sbp_core.log.states.writer_states import decode_mark
from sbp_core.pd.log_marks import maybe_other_log
from sbp_core.pd.metadata.data_dir import has_metadata
from sbp_core.pd.metadata.sqlite_inspection import DRIVER_NAME, maybe_log_mark_of
from sbp_core.pd.model import LogMark
from sbp_core.rangeserver.identity import IDENTITY_NAME, Identity, check_log_is_there
from sbp_core.segment_format import EntryKind, maybe_segment_base, segment_path
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


@log.command("check")
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


@log.command("repair")
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


@log.command("dump")
@click.option(
    "--from",
    "start",
    type=NUMBER,
    default=0,
    metavar="POSITION",
    help="Log position to begin at. [default: the first]",
)
@click.option("--max", "count", type=POSITIVE, help="End after N entries.")
@_folder
@json_option
def dump(folder: str, start: int, count: int | None, *, json: bool) -> int:
    """Print the entries of a log, without the records in them.

    A server may have the log open.
    """
    directories = find_logs(Path(folder))
    if len(directories) > 1:
        names = ", ".join(str(directory) for directory in directories)
        raise ConfigurationError(f"{folder} has several logs; name one of: {names}")
    show = output.write_json if json else _show_item
    for item in islice(_items(directories[0], start), count):
        show(item)
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


def _items(directory: Path, start: int) -> Iterator[dict[str, Any]]:
    """Yield the entries of a log from position `start` on."""
    bases = segment_bases(_DISK, directory, 0)
    first = max((base for base in bases if base <= start), default=0)
    for base in bases:
        if base < first:
            continue
        path = segment_path(directory, base)
        with translate_os_error(LogError, "reading", path):
            file = _DISK.open(path, is_writable=False)
            size = file.size()
        with closing(file):
            scanner = SegmentScanner(file, base, size)
            for item in scanner.entries():
                position = item.position if isinstance(item, Damage) else item[1].position
                if position >= start:
                    yield _described(path, item, scanner.time_ms)


def _described(path: Path, item: tuple[Entry, Location] | Damage, time_ms: int) -> dict[str, Any]:
    if isinstance(item, Damage):
        described: dict[str, Any] = {"position": item.position, "damage": item.reason}
        found = item.maybe_batch()
        if found is None:
            return {**described, "file": str(path)}
        entry, location = found
    else:
        described = {}
        entry, location = item
    described |= {
        "position": location.position,
        "length": location.length,
        "time_ms": time_ms,
        "kind": entry.kind.name.lower(),
    }
    if entry.kind is EntryKind.SNAPSHOT:
        return {**described, "ranges": entry.count}
    if entry.kind is EntryKind.SNAPSHOT_WRITERS:
        return {**described, "writers": entry.count}
    if entry.kind is EntryKind.SNAPSHOT_STAGED:
        return described
    described |= {
        "stream_id": entry.stream_id,
        "range_index": entry.range_index,
        "base_offset": entry.base_offset,
        "count": entry.count,
    }
    if entry.kind is EntryKind.WRITER_MARK:
        described["writer_id"], described["sequence"] = decode_mark(entry)
    if entry.kind is EntryKind.STAGED and entry.body:
        described["txn_id"], described["sequence"] = decode_prefix(entry.body)
    if entry.kind is EntryKind.SETTLED:
        settled = decode_settled(entry)
        described["seq"], described["is_cut"] = settled.end.seq, settled.truncation is not None
    if entry.kind is EntryKind.TXN_END:
        ended = decode_end(entry)
        described["is_commit"] = ended.is_commit
        described["txn_ids"] = list(ended.txn_ids)
        described["batches"] = len(ended.batches)
    return described


def _show_item(item: dict[str, Any]) -> None:
    output.write_line("  ".join(f"{name}={value}" for name, value in item.items()))
