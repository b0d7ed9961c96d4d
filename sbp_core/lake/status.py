"""How far streams have landed, as their tables say, and how far that is behind the streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from sbp_core.client import AsyncClient
from sbp_core.client.types import CursorInfo, StreamInfo
from sbp_core.lake.catalog import describe_error
from sbp_core.lake.table import LakeTable, TableState
from sbp_core.operating.cursor_lag import Lag, measure_group, unread_offsets

_ANSWER_MS: Final = 3_000
"""How long range servers that do not answer are waited for."""


async def find_statuses(
    client: AsyncClient, catalog: Catalog, tables: Sequence[tuple[StreamInfo, str]]
) -> list[tuple[TableState, Lag | None]]:
    """Return how far streams have landed in tables, and are behind; None if that is not known.

    An error of the catalog or a table is in its state. Raises SbpError if the cluster does not
    answer.
    """
    states = {each[0]: await asyncio.to_thread(state_of, catalog, *each) for each in tables}
    known = {stream: each.landed_offset for stream, each in states.items() if each.error is None}
    lags = await find_lags(client, known)
    return [(state, lags.get(stream.stream_id)) for stream, state in states.items()]


async def find_lags(client: AsyncClient, landed: Mapping[StreamInfo, int | None]) -> dict[int, Lag]:
    """Return by stream id how far streams are behind, whose offsets have landed so far.

    A landed offset is a cursor: the records at and behind it have not landed. Raises SbpError if
    the placement driver does not answer.
    """
    infos = {each.stream_id: each for each in landed}
    reaches = await client.reach(dict.fromkeys(infos), timeout_ms=_ANSWER_MS, spared={})
    cursors = [
        CursorInfo(
            each.stream_id, reaches[each.stream_id].start_offset if offset is None else offset, 0
        )
        for each, offset in landed.items()
    ]
    unread = unread_offsets(cursors, reaches)
    times = await client.append_times(unread, timeout_ms=_ANSWER_MS)
    lags = measure_group(cursors, infos, reaches, times, time.time_ns() // 1_000_000)
    return {each.stream_id: each for each in lags}


def state_of(catalog: Catalog, stream: StreamInfo, name: str) -> TableState:
    """Return the state of a table, which may be an error. Blocks."""
    try:
        return LakeTable(catalog.load_table(name), stream).state()
    except NoSuchTableError:
        return TableState(stream.label, name)
    except Exception as error:  # noqa: BLE001 - catalogs and object stores raise anything
        return TableState(stream.label, name, error=describe_error(error, catalog))
