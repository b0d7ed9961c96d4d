"""`sbp backup` and `sbp restore`."""

from __future__ import annotations

import asyncio
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import Final

from sbp_core.backup.format import Manifest
from sbp_core.backup.place import Place
from sbp_core.backup.restoring import restore_backup
from sbp_core.backup.taking import OnProgress, Progress, take_backup
from sbp_core.backup.upkeep import backup_ids, check_backup, newest_or, prune, read_manifest
from sbp_core.cli.connect import PATIENT, connect, connecting
from sbp_core.cli.output import (
    one_line,
    show_time,
    write_error_line,
    write_json,
    write_line,
    write_notice,
    write_table,
)
from sbp_core.cli.parsing import add_client_options, parse_positive, parse_size
from sbp_core.client import AsyncClient
from sbp_core.session.negotiation import Wishes
from sbp_core.wording import counted

_PLACE_HELP: Final = (
    "directory, or s3://BUCKET/PREFIX with credentials in the environment (AWS_ACCESS_KEY_ID,"
    " AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT)"
)
_HEADING: Final = ("BACKUP", "TAKEN", "STREAMS", "RECORDS", "SIZE")
_PROGRESS_SECONDS: Final = 1.0


def add_backup(parser: ArgumentParser) -> None:
    """Declare `sbp backup`."""
    parser.description = (
        "Take a backup of a running cluster: its metadata and records at one moment. Chunks that"
        " an earlier backup left in the same place are used again. For administrators, where"
        " servers ask for identities. A backup is as sensitive as the records."
    )
    _add_place(parser)
    add_client_options(parser)
    parser.add_argument(
        "--bytes-per-second",
        type=parse_size,
        default=0,
        metavar="SIZE",
        help="read no more than this from the range servers, such as 20MiB; no limit by default",
    )
    parser.set_defaults(run=run_backup)


def add_list(parser: ArgumentParser) -> None:
    """Declare `sbp backup list`."""
    _add_offline(parser)
    parser.set_defaults(run=run_list)


def add_check(parser: ArgumentParser) -> None:
    """Declare `sbp backup check`."""
    parser.description = "Read all of a backup, and compare the checksums. Exit code 1 for damage."
    _add_offline(parser)
    _add_backup_id(parser)
    parser.set_defaults(run=run_check)


def add_prune(parser: ArgumentParser) -> None:
    """Declare `sbp backup prune`."""
    parser.description = "Remove all backups but the newest ones, and what only they refer to."
    _add_offline(parser)
    parser.add_argument(
        "--keep", type=parse_positive, required=True, metavar="N", help="backups to keep, 1 or more"
    )
    parser.set_defaults(run=run_prune)


def add_restore(parser: ArgumentParser) -> None:
    """Declare `sbp restore`."""
    parser.description = (
        "Restore a backup onto an empty cluster: a placement driver and range servers with empty"
        " data directories, in any number. The cluster serves nobody until that is complete. If"
        " it is interrupted, run it again."
    )
    _add_place(parser)
    _add_backup_id(parser)
    add_client_options(parser)
    parser.set_defaults(run=run_restore)


def run_backup(options: Namespace) -> int:
    """Take a backup."""

    async def work() -> int:
        place = Place.open(options.place, is_new=True)
        async with _client(options) as client:
            taken = await take_backup(
                client,
                place,
                bytes_per_second=options.bytes_per_second,
                on_progress=_shower("copied", is_json=options.json),
            )
        manifest, progress = taken.manifest, taken.progress
        if options.json:
            write_json(_summary(manifest) | _copied(progress) | {"held_us": manifest.held_us})
        else:
            write_line(
                f"backup {manifest.backup_id}: {_extent(manifest)},"
                f" {show_bytes(progress.bytes_copied)} copied,"
                f" {show_bytes(progress.bytes_reused)} reused; commits were held for"
                f" {manifest.held_us / 1000:.1f} ms"
            )
        for text in _left_out(manifest):
            write_notice(text)
        return 0

    connect(options).close()
    return asyncio.run(work())


def run_list(options: Namespace) -> int:
    """List the backups in a place, the oldest first."""

    async def work() -> int:
        place = Place.open(options.place)
        rows = []
        for backup_id in await backup_ids(place):
            manifest = await read_manifest(place, backup_id)
            if options.json:
                write_json(_summary(manifest))
            rows.append(
                (
                    manifest.backup_id,
                    show_time(manifest.taken_at_ms),
                    str(len(manifest.streams)),
                    str(manifest.record_count),
                    show_bytes(manifest.size),
                )
            )
        if not options.json:
            write_table(_HEADING, rows)
        return 0

    return asyncio.run(work())


def run_check(options: Namespace) -> int:
    """Check a backup."""

    async def work() -> int:
        place = Place.open(options.place)
        manifest = await read_manifest(place, await newest_or(place, options.backup))
        faults = await check_backup(place, manifest)
        if options.json:
            write_json(_summary(manifest) | {"faults": [str(each) for each in faults]})
            return 1 if faults else 0
        for each in faults:
            write_line(str(each))
        if not faults:
            write_line(f"backup {manifest.backup_id} is undamaged: {_extent(manifest)}")
        return 1 if faults else 0

    return asyncio.run(work())


def run_prune(options: Namespace) -> int:
    """Remove backups."""

    async def work() -> int:
        pruned = await prune(Place.open(options.place), options.keep)
        if options.json:
            write_json(
                {
                    "removed": list(pruned.backup_ids),
                    "chunks": pruned.chunk_count,
                    "bytes": pruned.size,
                }
            )
        else:
            write_line(
                f"{counted(len(pruned.backup_ids), 'backup')} removed, and"
                f" {counted(pruned.chunk_count, 'chunk')} of {show_bytes(pruned.size)}"
            )
        return 0

    return asyncio.run(work())


def run_restore(options: Namespace) -> int:
    """Restore a backup."""

    async def work() -> int:
        place = Place.open(options.place)
        manifest = await read_manifest(place, await newest_or(place, options.backup))
        async with _client(options, manifest.backup_id) as client:
            restored = await restore_backup(
                client,
                place,
                manifest,
                on_progress=_shower("restored", is_json=options.json),
            )
        if options.json:
            write_json(
                _summary(manifest)
                | _copied(restored.progress)
                | {"was_complete": restored.was_complete}
            )
        elif restored.was_complete:
            write_notice(f"backup {manifest.backup_id} was restored before: nothing was changed")
        else:
            write_line(
                f"backup {manifest.backup_id} is restored as of {show_time(manifest.taken_at_ms)}:"
                f" {_extent(manifest)}"
            )
        for text in _left_out(manifest):
            write_notice(text)
        return 0

    connect(options).close()
    return asyncio.run(work())


def show_bytes(size: int) -> str:
    """Return a size for people, with one digit after the point."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def _add_place(parser: ArgumentParser) -> None:
    parser.add_argument("place", metavar="PLACE", help=_PLACE_HELP)


def _add_backup_id(parser: ArgumentParser) -> None:
    parser.add_argument("--backup", metavar="ID", help="which one; the newest by default")


def _add_offline(parser: ArgumentParser) -> None:
    _add_place(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")


def _client(options: Namespace, restoring: str = "") -> AsyncClient:
    return AsyncClient(
        options.endpoint,
        connecting=connecting(options, Wishes(restoring=restoring)),
        retry=PATIENT,
    )


def _shower(verb: str, *, is_json: bool) -> OnProgress:
    """Return what shows the progress on a terminal, once a second at most."""
    shown_at = time.monotonic()

    def show(progress: Progress) -> None:
        nonlocal shown_at
        now = time.monotonic()
        if now - shown_at < _PROGRESS_SECONDS:
            return
        shown_at = now
        write_error_line(
            f"{progress.streams_done} of {progress.stream_count} streams,"
            f" {show_bytes(progress.bytes_copied)} {verb}"
        )

    return show if sys.stderr.isatty() and not is_json else lambda _: None


def _summary(manifest: Manifest) -> dict[str, object]:
    return {
        "backup": manifest.backup_id,
        "taken_at_ms": manifest.taken_at_ms,
        "streams": len(manifest.streams),
        "records": manifest.record_count,
        "bytes": manifest.size,
        "deleted": list(manifest.deleted),
        "trimmed": [each.stream_id for each in manifest.streams if each.trimmed_to],
    }


def _copied(progress: Progress) -> dict[str, object]:
    return {"bytes_copied": progress.bytes_copied, "bytes_reused": progress.bytes_reused}


def _extent(manifest: Manifest) -> str:
    streams, records = len(manifest.streams), manifest.record_count
    return f"{counted(streams, 'stream')}, {counted(records, 'record')}"


def _left_out(manifest: Manifest) -> list[str]:
    """Return what is not in a backup because it ceased to exist while records were copied."""
    return [
        f"stream {one_line(each)} is not in the backup: it was deleted while that was taken"
        for each in manifest.deleted
    ] + [
        f"records {each.start_offset} to {each.first_offset - 1} of stream {each.stream_id} are not"
        " in the backup: they were trimmed while that was taken"
        for each in manifest.streams
        if each.first_offset > each.start_offset
    ]
