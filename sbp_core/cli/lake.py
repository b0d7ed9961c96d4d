"""`sbp lake`: land streams in Iceberg tables, and show how far they have landed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
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
from sbp_core.lake.catalog import open_catalog, require_pyiceberg
from sbp_core.settings.configuration import SERVE, ProcessSettings, settings_of
from sbp_core.settings.lake_tables import TableRule
from sbp_core.settings.listening import ListenerSettings, is_wildcard

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from sbp_core.lake.service import Lake
    from sbp_core.lake.table import TableState
    from sbp_core.operating.cursor_lag import Lag

_LOG: Final = logging.getLogger(__name__)
_WAREHOUSE: Final = "sbp-lake"
_LOCAL: Final = "127.0.0.1"
_TABLES: Final = SERVE.settings["lake_tables"]
_HEADING: Final = ("STREAM", "TABLE", "LANDED", "LAG", "BEHIND", "FILES", "BYTES", "ERROR")


catalog_options: Final = declaring(
    [
        click.option(
            "--catalog",
            metavar="NAME",
            help="Catalog of the tables, which PyIceberg's configuration names. [default: none]",
        ),
        click.option(
            "--warehouse",
            type=PATH,
            help="Folder of the tables and of a catalog in SQLite, without --catalog."
            f" [default: {_WAREHOUSE} for sbp lake]",
        ),
    ]
)


@click.command(cls=CommandWithActions, example="sbp lake --warehouse tables")
@catalog_options
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
    help="Commit earlier once the records have this size, uncompressed. [default: 128MiB]",
)
@click.option(
    "--keep",
    type=DURATION_MS,
    default="1d",
    help="Keep old snapshots of a table, and their files, for so long. [default: 1d]",
)
@setting_option(_TABLES)
@click.option(
    "--config",
    type=PATH,
    help="Settings in TOML, of which the section [lake] counts; conf/server.toml has it.",
)
@click.option(
    "--admin-port",
    type=click.IntRange(-1, 65_535),
    default=-1,
    metavar="PORT",
    help="Port of health, readiness and metrics over HTTP; 0 picks a free one. [default: none]",
)
@click.option(
    "--admin-host",
    default=_LOCAL,
    metavar="HOST",
    help=f"Interface of that port. Everyone who reaches it may read. [default: {_LOCAL}]",
)
@setting_option(settings_of(ProcessSettings)["ready_file"])
@client_options
def lake(
    options: ClientOptions,
    *,
    catalog: str | None,
    warehouse: str | None,
    interval: int,
    file_bytes: int,
    keep: int,
    lake_tables: tuple[str, ...],
    config: str | None,
    admin_port: int,
    admin_host: str,
    ready_file: str | None,
) -> int:
    """Land streams in Iceberg tables, each record exactly once, until a signal.

    The streams are those with the property lake.table=NAMESPACE.TABLE. `sbp streams update --lake`
    sets it, and so does the first --lake-table whose pattern matches. The table has the columns of
    the stream, or _key, value and _headers, and the _offset and _timestamp of each record.
    """
    # A file that is older than three days, and not committed, may be removed as left over.
    if not 1_000 <= interval <= 86_400_000 or file_bytes < 1 << 16:
        raise ConfigurationError("--interval is 1s to 1d, and --file-bytes 64KiB at least")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("pyiceberg").setLevel(logging.ERROR)
    ready = ReadyFile(None if ready_file is None else Path(ready_file))
    if config is not None and not lake_tables:
        lake_tables = SERVE.read_file(Path(config)).get("lake_tables", ())
    rules = [*map(TableRule.parse, lake_tables)]
    settings = {
        "interval_seconds": interval / 1000,
        "file_bytes": file_bytes,
        "keep_seconds": keep / 1000,
    }
    folder = warehouse or _WAREHOUSE
    shown = {**settings, "catalog": catalog, "warehouse": folder, "tables": lake_tables}
    admin = _Admin(admin_host, admin_port, {"lake": shown}) if admin_port >= 0 else None
    require_pyiceberg()
    opener = partial(open_catalog, catalog, folder)
    asyncio.run(_serve(options, opener, settings, ready, rules=rules, admin=admin))
    return 0


@dataclass(frozen=True, slots=True)
class _Admin:
    """Where health and metrics are served, and what `/config` shows."""

    host: str
    port: int
    shown: Mapping[str, object]

    async def start(self, lake: Lake, stack: AsyncExitStack) -> str:
        """Serve until the end of a stack; return the endpoint."""
        from sbp_core.admin.endpoint import AdminEndpoint

        settings = ListenerSettings(
            data_dir=Path(),
            host=self.host,
            port=self.port,
            advertise_host=_LOCAL if is_wildcard(self.host) else None,
            insecure=self.host != _LOCAL,
        )
        endpoint = AdminEndpoint(lake, settings, self.port, lambda: self.shown)
        stack.push_async_callback(endpoint.stop)
        return await endpoint.start()


@lake.action("status", example="sbp lake status --warehouse tables")
@catalog_options
@client_options
def status(options: ClientOptions, catalog: str | None, warehouse: str | None) -> int:
    """Show how far each stream has landed, by its table, and how far that is behind."""
    opened = open_catalog(catalog, warehouse or _WAREHOUSE)
    rows = []
    for state, lag in asyncio.run(_statuses(options, opened)):
        seconds = None if lag is None or lag.lag_ms is None else lag.lag_ms / 1000
        behind = {"lag_records": lag and lag.lag_records, "lag_s": seconds}
        if options.json:
            write_json(asdict(state) | behind)
        numbers = (state.landed_offset, *behind.values(), state.files, state.bytes)
        cells = ("-" if each is None else f"{each:.0f}" for each in numbers)
        gaps = "".join(f"lost offsets {start} to {end - 1}; " for start, end in state.gaps)
        rows.append((state.stream, state.table, *cells, gaps + (state.error or "")))
    if not options.json:
        write_table(_HEADING, rows)
    return 0


async def _serve(
    options: ClientOptions,
    opener: Callable[[], Catalog],
    settings: dict[str, Any],
    ready: ReadyFile,
    *,
    rules: list[TableRule],
    admin: _Admin | None,
) -> None:
    from sbp_core.lake.landing import LandingSettings
    from sbp_core.lake.service import Lake

    stopping = asyncio.get_running_loop().create_future()
    watch_signals(stopping)
    ready.remove()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(async_client(options, PATIENT_MS))
        lake = Lake(client, opener, LandingSettings(**settings), rules)
        content, lines = {"lake": options.endpoint}, []
        if admin is not None:
            content["admin"] = await admin.start(lake, stack)
            lines.append(f"admin             {content['admin']}")
        running = asyncio.create_task(lake.run(), name="lake")
        ready.write(content)
        announce([*lines, "lands streams; Ctrl-C or SIGTERM stops"])
        try:
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.remove()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


async def _statuses(
    options: ClientOptions, catalog: Catalog
) -> list[tuple[TableState, Lag | None]]:
    from sbp_core.lake.service import find_targets
    from sbp_core.lake.status import find_statuses

    async with async_client(options, PROMPT_MS) as client:
        targets = await find_targets(client)
        found = await find_statuses(client, catalog, [each[:2] for each in targets])
    return [
        (replace(state, error=state.error or noted), lag)
        for (state, lag), noted in zip(found, targets.values(), strict=True)
    ]
