"""`sbp lake`: land streams in Iceberg tables, and show how far they have landed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sbp_core.cli.commands import CommandWithActions
from sbp_core.cli.connect import PATIENT_MS, PROMPT_MS, async_client
from sbp_core.cli.options import DURATION_MS, PATH, SIZE, ClientOptions, client_options, declaring
from sbp_core.cli.output import write_json, write_table
from sbp_core.cli.server_options import setting_option
from sbp_core.cli.serving import ReadyFile, announce, watch_signals
from sbp_core.errors import ConfigurationError
from sbp_core.lake.catalog import open_catalog
from sbp_core.settings.configuration import ProcessSettings, settings_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from sbp_core.lake.status import LakeStatus

_LOG: Final = logging.getLogger(__name__)
_WAREHOUSE: Final = "sbp-lake"
_HEADING: Final = ("STREAM", "TABLE", "LANDED", "LAG", "BEHIND", "FILES", "BYTES", "ERROR")


_catalog_options: Final = declaring(
    [
        click.option(
            "--catalog",
            metavar="NAME",
            help="Catalog that PyIceberg's configuration names. [default: one in --warehouse]",
        ),
        click.option(
            "--warehouse",
            type=PATH,
            default=_WAREHOUSE,
            help="Folder of the tables and of a catalog in SQLite, without --catalog."
            f" [default: {_WAREHOUSE}]",
        ),
    ]
)


@click.command(cls=CommandWithActions, example="sbp lake --warehouse tables")
@_catalog_options
@click.option(
    "--interval",
    type=DURATION_MS,
    default="1m",
    help="Commit the records of a stream at the latest so long after the first. [default: 1m]",
)
@click.option(
    "--file-bytes",
    type=SIZE,
    default="128MiB",
    help="Commit before that once the records take so much memory. [default: 128MiB]",
)
@click.option(
    "--keep",
    type=DURATION_MS,
    default="1d",
    help="Keep old snapshots of a table, and their files, for so long. [default: 1d]",
)
@setting_option(settings_of(ProcessSettings)["ready_file"])
@client_options
def lake(
    options: ClientOptions,
    *,
    catalog: str | None,
    warehouse: str,
    interval: int,
    file_bytes: int,
    keep: int,
    ready_file: str | None,
) -> int:
    """Land streams in Iceberg tables, each record exactly once, until a signal.

    The streams are those with the property lake.table=NAMESPACE.TABLE. See `sbp streams update
    --lake`. The table has the columns of the stream, or _key, value and _headers, and the _offset
    and _timestamp of each record.
    """
    if not interval or file_bytes < 1 << 16:
        raise ConfigurationError("--interval is 1s at least, and --file-bytes 64KiB")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("pyiceberg").setLevel(logging.ERROR)
    ready = ReadyFile(None if ready_file is None else Path(ready_file))
    opened = open_catalog(catalog, warehouse)
    settings = {
        "interval_seconds": interval / 1000,
        "file_bytes": file_bytes,
        "keep_seconds": keep / 1000,
    }
    asyncio.run(_serve(options, opened, settings, ready))
    return 0


@lake.action("status", example="sbp lake status --warehouse tables")
@_catalog_options
@client_options
def status(options: ClientOptions, catalog: str | None, warehouse: str) -> int:
    """Show how far each stream has landed, by its table, and how far that is behind."""
    opened = open_catalog(catalog, warehouse)
    found = asyncio.run(_statuses(options, opened))
    if options.json:
        for each in found:
            write_json(_described(each))
    else:
        write_table(_HEADING, [*map(_row, found)])
    return 0


def _described(found: LakeStatus) -> dict[str, Any]:
    behind = {"lag_records": found.lag_records, "lag_s": found.lag_seconds}
    return asdict(found.state) | behind


def _row(found: LakeStatus) -> tuple[str, ...]:
    state = found.state
    shown = (state.landed_offset, found.lag_records, found.lag_seconds, state.files, state.bytes)
    cells = ("-" if each is None else f"{each:.0f}" for each in shown)
    gaps = "".join(f"lost offsets {start} to {end - 1}; " for start, end in state.gaps)
    return (state.stream, state.table, *cells, gaps + (state.error or ""))


async def _serve(
    options: ClientOptions, catalog: Catalog, settings: dict[str, Any], ready: ReadyFile
) -> None:
    from sbp_core.lake.landing import LandingSettings
    from sbp_core.lake.service import Lake

    stopping = asyncio.get_running_loop().create_future()
    watch_signals(stopping)
    ready.remove()
    async with async_client(options, PATIENT_MS) as client:
        running = asyncio.create_task(
            Lake(client, catalog, LandingSettings(**settings)).run(), name="lake"
        )
        ready.write({"lake": options.endpoint})
        announce(["lands streams; Ctrl-C or SIGTERM stops"])
        try:
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.remove()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def _statuses(options: ClientOptions, catalog: Catalog) -> list[LakeStatus]:
    from sbp_core.lake.service import find_targets
    from sbp_core.lake.status import find_status

    async with async_client(options, PROMPT_MS) as client:
        targets = await find_targets(client)
        return [await find_status(client, catalog, each.stream, each.table) for each in targets]
