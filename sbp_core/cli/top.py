"""`sbp top`: rates, lag and disks of a cluster, live on a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from sbp_core.cli.client_options import ClientOptions, client_options
from sbp_core.cli.connect import PROMPT, connecting
from sbp_core.cli.output import one_line, write_json, write_line, write_table
from sbp_core.cli.top_view import (
    SERVER_HEADING,
    STREAM_HEADING,
    TopView,
    make_top,
    server_cells,
)
from sbp_core.client import AsyncClient, ClusterInfo
from sbp_core.errors import PermissionDeniedError, SbpError, UnsupportedError
from sbp_core.operating.samples import PERIOD_SECONDS, Sampling
from sbp_core.wording import escape

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_ONCE_SECONDS: Final = 1.0
"""Between the two samples of which rates are computed."""
_CALL_MS: Final = 10_000
_FRAME_LINES: Final = 5
"""The title, the headings, and the empty lines between."""
_TEXTS: Final = ("SERVER", "ENDPOINT", "STATE", "STREAM", "GROUP")
"""Columns of words; the others have numbers."""


@click.command()
@click.option("--once", is_flag=True, help="Print it once. That is so unless it is a terminal.")
@client_options
def top(options: ClientOptions, *, once: bool) -> int:
    """Show records and bytes per second, sizes, lag and disks of a cluster, live.

    q or Ctrl-C ends it. The lag of a stream is that of the group that is most behind there.
    """
    is_live = not once and not options.json and sys.stdout.isatty()
    client = AsyncClient(
        options.endpoint, connecting=connecting(options), retry=PROMPT, timeout_ms=_CALL_MS
    )
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
