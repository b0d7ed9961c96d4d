"""`sbp top`: rates, lag and disks of a cluster, live on a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import click

from sbp_core.cli.commands import Command
from sbp_core.cli.connect import PROMPT_MS, async_client
from sbp_core.cli.options import ClientOptions, client_options
from sbp_core.cli.output import one_line, write_json, write_line, write_table
from sbp_core.errors import PermissionDeniedError, SbpError, UnsupportedError
from sbp_core.quantities import round_size
from sbp_core.wording import counted, escape

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from sbp_core.client import AsyncClient, ClusterInfo, RangeServerInfo
    from sbp_core.operating.samples import Samples


N = TypeVar("N", int, float)

STREAM_HEADING = ("STREAM", "RECORDS", "RECORDS/S", "BYTES/S", "SIZE", "LAG", "GROUP")
SERVER_HEADING = ("SERVER", "ENDPOINT", "STATE", "DISK FREE", "PRIMARY", "COPIES", "SEALED")
_UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class StreamLine:
    """A stream; None is what is not known. `lag` is that of `group`, which is most behind."""

    stream: str
    stream_id: int
    records: int | None
    records_per_second: float | None
    bytes_per_second: float | None
    stored_bytes: int | None
    lag: int | None
    group: str | None

    def cells(self) -> tuple[str, ...]:
        """Return what its row shows."""
        return (
            self.stream,
            _count(self.records),
            _rate(self.records_per_second),
            _size(self.bytes_per_second),
            _size(self.stored_bytes),
            _count(self.lag),
            self.group or _UNKNOWN,
        )


@dataclass(frozen=True, slots=True)
class TopView:
    """A cluster now. The servers are empty for a caller that may not see them.

    The streams are ordered: those with most bytes and records per second first, then by lag.
    """

    records: int | None
    records_per_second: float | None
    bytes_per_second: float | None
    stored_bytes: int | None
    lag: int | None
    streams: tuple[StreamLine, ...]
    servers: tuple[RangeServerInfo, ...]

    @property
    def summary(self) -> str:
        """The sums in a line."""
        return (
            f"{counted(len(self.streams), 'stream')}, {_count(self.records)} records,"
            f" {_size(self.stored_bytes)}; {_rate(self.records_per_second)} records/s,"
            f" {_size(self.bytes_per_second)}/s; lag {_count(self.lag)}"
        )


def make_top(samples: Samples, cluster: ClusterInfo | None) -> TopView:
    """Return what was sampled."""
    rates, byte_rates, ends = samples.rates(), samples.byte_rates(), samples.newest
    lags = _most_behind(samples)
    lines = []
    for info in samples.streams:
        key = info.stream_id
        end = None if ends is None else ends.maybe_end(key)
        group, lag = lags.get(key, (None, None))
        held = None if end is None else end - samples.starts.get(key, end)
        size_bytes = samples.sizes.get(key)
        line = StreamLine(
            info.label, key, held, rates.get(key), byte_rates.get(key), size_bytes, lag, group
        )
        lines.append(line)
    lines.sort(
        key=lambda each: (
            -(each.bytes_per_second or 0),
            -(each.records_per_second or 0),
            -(each.lag or 0),
            each.stream,
        )
    )
    servers = () if cluster is None else cluster.range_servers
    return TopView(
        records=_sum(each.records for each in lines),
        records_per_second=_sum(each.records_per_second for each in lines),
        bytes_per_second=_sum(each.bytes_per_second for each in lines),
        stored_bytes=_sum(each.stored_bytes for each in lines),
        lag=sum(samples.lags[-1].records.values()) if samples.lags else None,
        streams=tuple(lines),
        servers=tuple(each for each in servers if not each.is_retired),
    )


def server_cells(server: RangeServerInfo) -> tuple[str, ...]:
    """Return what the row of a range server shows."""
    return (
        str(server.server_id),
        server.endpoint,
        server.state,
        _size(server.disk_free_bytes),
        str(server.led_ranges),
        str(server.copied_ranges),
        str(server.sealed_ranges),
    )


def _most_behind(samples: Samples) -> Mapping[int, tuple[str, int]]:
    """Return the group that is most behind, and by how much, for each stream."""
    found: dict[int, tuple[str, int]] = {}
    if samples.lags:
        for (group, stream_id), lag in samples.lags[-1].records.items():
            if stream_id not in found or lag > found[stream_id][1]:
                found[stream_id] = group, lag
    return found


def _sum(values: Iterable[N | None]) -> N | None:
    """Return the sum of what is known; None if nothing is."""
    known = [each for each in values if each is not None]
    return sum(known[1:], known[0]) if known else None


def _count(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:,.0f}"


def _rate(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _size(value: float | None) -> str:
    return _UNKNOWN if value is None else round_size(int(value))


_ONCE_SECONDS: Final = 1.0
"""Between the two samples of which rates are computed."""
_CALL_MS: Final = 10_000
_FRAME_LINES: Final = 5
"""The title, the headings, and the empty lines between."""
_TEXTS: Final = ("SERVER", "ENDPOINT", "STATE", "STREAM", "GROUP")
"""Columns of words; the others have numbers."""


@click.command(cls=Command, example="sbp top")
@click.option("--once", is_flag=True, help="Print it once. That is so unless it is a terminal.")
@client_options
def top(options: ClientOptions, *, once: bool) -> int:
    """Show records and bytes per second, sizes, lag and disks of a cluster, live.

    q or Ctrl-C ends it. The lag of a stream is that of the group that is most behind there.
    """
    is_live = not once and not options.json and sys.stdout.isatty()
    client = async_client(options, PROMPT_MS, timeout_ms=_CALL_MS)
    if is_live:
        asyncio.run(_watch(client, options.endpoint))
        return 0
    view = asyncio.run(_look(client))
    if options.json:
        write_json(asdict(view))
        return 0
    write_line(view.summary)
    if view.servers:
        write_table(SERVER_HEADING, [server_cells(each) for each in view.servers])
    if view.streams:
        write_table(STREAM_HEADING, [each.cells() for each in view.streams])
    return 0


async def _look(client: AsyncClient) -> TopView:
    """Return the view of two samples. Raises SbpError."""
    from sbp_core.operating.samples import Sampling

    async with client:
        await client.ping()
        sampling = Sampling(client, sizes_seconds=0)
        await sampling.sample()
        await asyncio.sleep(_ONCE_SECONDS)
        await sampling.sample()
        return make_top(sampling.samples, await _maybe_cluster(client))


async def _watch(client: AsyncClient, endpoint: str) -> None:
    """Show the view until somebody presses q. Raises SbpError if the first sample fails."""
    from rich.live import Live

    from sbp_core.operating.samples import PERIOD_SECONDS, Sampling

    async with client:
        await client.ping()
        sampling = Sampling(client, sizes_seconds=0)
        await sampling.sample()
        cluster = await _maybe_cluster(client)
        is_over = asyncio.Event()
        with _pressed_q(is_over), Live(screen=True, auto_refresh=False) as live:
            while True:
                samples = sampling.samples
                view = make_top(samples, cluster)
                title = samples.error or f"{endpoint}: {view.summary}"
                live.update(drawn(view, title, live.console.height), refresh=True)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(is_over.wait(), PERIOD_SECONDS)
                    return
                await sampling.try_sample()
                with contextlib.suppress(SbpError):  # the last known is shown
                    cluster = await _maybe_cluster(client)


async def _maybe_cluster(client: AsyncClient) -> ClusterInfo | None:
    """Return the servers; None if the caller may not see them, or nothing answers now."""
    try:
        return await client.describe_cluster()
    except (PermissionDeniedError, UnsupportedError):
        return None


@contextlib.contextmanager
def _pressed_q(is_over: asyncio.Event) -> Iterator[None]:
    """Set the event when q is pressed in the body. Without a keyboard nothing is read."""
    if not sys.stdin.isatty():
        yield
        return
    keyboard = sys.stdin.fileno()
    loop, before = asyncio.get_running_loop(), termios.tcgetattr(keyboard)

    def read() -> None:
        pressed = os.read(keyboard, 64)
        if not pressed or b"q" in pressed.lower():
            is_over.set()
            loop.remove_reader(keyboard)

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, read)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def drawn(view: TopView, title: str, height: int) -> RenderableType:
    """Return the view for a terminal with `height` lines: all servers, then the first streams."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(one_line(title), style="bold"), Text("")]
    servers = [server_cells(each) for each in view.servers]
    if servers:
        parts += [_table(SERVER_HEADING, servers), Text("")]
    left = height - len(servers) - _FRAME_LINES
    streams = [each.cells() for each in view.streams[: max(left, 1)]]
    parts.append(_table(STREAM_HEADING, streams))
    return Group(*parts)


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in heading:
        table.add_column(name, no_wrap=True, justify="left" if name in _TEXTS else "right")
    for row in rows:
        table.add_row(*(Text(escape(cell)) for cell in row))
    return table
