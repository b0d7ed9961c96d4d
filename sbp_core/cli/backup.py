"""`sbp backup` and `sbp restore`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

from sbp_core.cli.commands import Actions, Command
from sbp_core.cli.confirming import write_effects, yes_option
from sbp_core.cli.connect import PATIENT_MS, async_client, connect
from sbp_core.cli.options import POSITIVE, SIZE, ClientOptions, client_options, json_option
from sbp_core.cli.output import (
    one_line,
    show_time,
    write_json,
    write_line,
    write_notice,
    write_result,
    write_table,
)
from sbp_core.cli.progress import BYTES, OnProgress, progress
from sbp_core.quantities import round_size
from sbp_core.wording import counted

if TYPE_CHECKING:
    from sbp_core.backup.format import BackupError, Manifest
    from sbp_core.backup.restoring import Restored
    from sbp_core.backup.taking import Progress, Taken
    from sbp_core.backup.upkeep import Pruned

_PLACE_HELP: Final = (
    "Directory, or s3://BUCKET/PREFIX with credentials in the environment (AWS_ACCESS_KEY_ID,"
    " AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT)."
)
_HEADING: Final = ("BACKUP", "TAKEN", "STREAMS", "RECORDS", "SIZE")


backup: Final = Actions("backup", help="Take, list, check and remove backups.")
_place: Final = click.argument("place", help=_PLACE_HELP)
_backup_id: Final = click.option(
    "--backup", "backup_id", metavar="ID", help="Which one; the newest by default."
)


@backup.command("create", example="sbp backup create s3://backups/sbp")
@_place
@click.option(
    "--bytes-per-second",
    type=SIZE,
    default=0,
    help="Read no more than this from the range servers, such as 20MiB; no limit by default.",
)
@client_options
def create(options: ClientOptions, place: str, bytes_per_second: int) -> int:
    """Take a backup of a running cluster: its metadata and records at one moment.

    Chunks that an earlier backup left in the same place are used again. For administrators, where
    servers ask for identities. A backup is as sensitive as the records.
    """

    async def take() -> Taken:
        from sbp_core.backup.storage import BackupStorage
        from sbp_core.backup.taking import take_backup

        opened = BackupStorage.open(place, is_new=True)
        async with async_client(options, PATIENT_MS) as client:
            with progress(BYTES) as report:
                return await take_backup(
                    client,
                    opened,
                    bytes_per_second=bytes_per_second,
                    on_progress=_shower(report),
                )

    with connect(options):
        pass
    taken = asyncio.run(take())
    manifest, done = taken.manifest, taken.progress
    write_result(
        _summary(manifest) | _copied(done) | {"held_us": manifest.held_us},
        f"backup {manifest.backup_id}: {_extent(manifest)}, {round_size(done.bytes_copied)}"
        f" copied, {round_size(done.bytes_reused)} reused; commits were held for"
        f" {manifest.held_us / 1000:.1f} ms",
        is_json=options.json,
    )
    for text in _left_out(manifest):
        write_notice(text)
    return 0


@backup.command("list", example="sbp backup list s3://backups/sbp")
@_place
@json_option
def list_backups(place: str, *, json: bool) -> int:
    """List the backups in a place, the oldest first."""

    async def read() -> list[Manifest]:
        from sbp_core.backup.storage import BackupStorage
        from sbp_core.backup.upkeep import backup_ids, read_manifest

        opened = BackupStorage.open(place)
        return [await read_manifest(opened, each) for each in await backup_ids(opened)]

    found = asyncio.run(read())
    if json:
        for each in found:
            write_json(_summary(each))
    else:
        write_table(_HEADING, [_row(each) for each in found])
    return 0


@backup.command("check", example="sbp backup check s3://backups/sbp")
@_place
@_backup_id
@json_option
def check(place: str, backup_id: str | None, *, json: bool) -> int:
    """Read all of a backup, and compare the checksums. Exit code 1 for damage."""

    async def read() -> tuple[Manifest, list[BackupError]]:
        from sbp_core.backup.storage import BackupStorage
        from sbp_core.backup.upkeep import check_backup, newest_or, read_manifest

        opened = BackupStorage.open(place)
        manifest = await read_manifest(opened, await newest_or(opened, backup_id))
        with progress(BYTES) as report:
            faults = await check_backup(
                opened, manifest, lambda size: report(size, manifest.size, "")
            )
        return manifest, faults

    manifest, faults = asyncio.run(read())
    if json:
        write_json(_summary(manifest) | {"faults": [str(each) for each in faults]})
        return 1 if faults else 0
    for each in faults:
        write_line(str(each))
    if not faults:
        write_line(f"backup {manifest.backup_id} is undamaged: {_extent(manifest)}")
    return 1 if faults else 0


@backup.command("prune", example="sbp backup prune s3://backups/sbp --keep 7")
@_place
@click.option("--keep", type=POSITIVE, required=True, help="Backups to keep, 1 or more.")
@yes_option
@json_option
def prune_backups(place: str, keep: int, *, json: bool, yes: bool) -> int:
    """Remove all backups but the newest ones, and the records that only those backups refer to.

    Without --yes it is only shown what would happen.
    """

    async def remove() -> Pruned:
        from sbp_core.backup.storage import BackupStorage
        from sbp_core.backup.upkeep import find_prunable, prune

        return await (prune if yes else find_prunable)(BackupStorage.open(place), keep)

    pruned = asyncio.run(remove())
    shown = {
        "removed": list(pruned.backup_ids),
        "chunks": pruned.chunk_count,
        "bytes": pruned.size,
    }
    texts = [*pruned.backup_ids] if not yes else []
    texts.append(
        f"{counted(len(pruned.backup_ids), 'backup')} {'removed' if yes else 'would be removed'},"
        f" and {counted(pruned.chunk_count, 'chunk')} of {round_size(pruned.size)}"
    )
    write_effects([(shown, texts)], "removed", is_done=yes, is_json=json)
    return 0


@click.command(cls=Command, example="sbp restore s3://backups/sbp")
@_place
@_backup_id
@client_options
def restore(options: ClientOptions, place: str, backup_id: str | None) -> int:
    """Restore a backup onto an empty cluster.

    An empty cluster is a placement driver and range servers with empty data directories, in any
    number. The cluster serves nobody until the restore is complete. If it is interrupted, run it
    again.
    """

    async def copy() -> tuple[Manifest, Restored]:
        from sbp_core.backup.restoring import restore_backup
        from sbp_core.backup.storage import BackupStorage
        from sbp_core.backup.upkeep import newest_or, read_manifest

        opened = BackupStorage.open(place)
        manifest = await read_manifest(opened, await newest_or(opened, backup_id))
        restoring = manifest.backup_id
        async with async_client(options, PATIENT_MS, restoring=restoring) as client:
            with progress(BYTES) as report:
                on_progress = _shower(report)
                restored = await restore_backup(client, opened, manifest, on_progress=on_progress)
        return manifest, restored

    with connect(options):
        pass
    manifest, restored = asyncio.run(copy())
    if options.json:
        complete = {"was_complete": restored.was_complete}
        write_json(_summary(manifest) | _copied(restored.progress) | complete)
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


def _shower(report: OnProgress) -> Callable[[Progress], None]:
    def show(at: Progress) -> None:
        remark = f"{at.streams_done} of {counted(at.stream_count, 'stream')}"
        report(at.bytes_done, at.byte_count, remark)

    return show


def _row(manifest: Manifest) -> tuple[object, ...]:
    return (
        manifest.backup_id,
        show_time(manifest.taken_at_ms),
        len(manifest.streams),
        manifest.record_count,
        round_size(manifest.size),
    )


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


def _copied(done: Progress) -> dict[str, object]:
    return {"bytes_copied": done.bytes_copied, "bytes_reused": done.bytes_reused}


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
