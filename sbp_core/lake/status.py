"""How far a stream has landed, as its table says, and how far that is behind the stream."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from sbp_core.client import AsyncClient
from sbp_core.client.types import StreamInfo
from sbp_core.lake.catalog import describe_error
from sbp_core.lake.table import LakeTable, TableState


@dataclass(frozen=True, slots=True)
class LakeStatus:
    """The state of a table, and how many records and seconds it is behind the stream.

    The seconds are the age of the first record that has not landed; None if that is not known.
    """

    state: TableState
    lag_records: int
    lag_seconds: float | None


async def find_status(
    client: AsyncClient, catalog: Catalog, stream: StreamInfo, table: str
) -> LakeStatus:
    """Return the status of a stream. Raises SbpError if the cluster does not answer.

    An error of the catalog or the table is in the state.
    """
    (bounds,) = await client.stream_bounds([stream.stream_id])
    state = await asyncio.to_thread(_state_of, catalog, stream, table)
    first = bounds.start_offset if state.landed_offset is None else state.landed_offset
    lag = max(0, bounds.next_offset - first)
    if not lag:
        return LakeStatus(state, 0, 0.0)
    appended_ms = (await client.append_times({stream.stream_id: first}))[stream.stream_id]
    if appended_ms is None:
        return LakeStatus(state, lag, None)
    return LakeStatus(state, lag, max(0.0, round(time.time() - appended_ms / 1000, 3)))


def _state_of(catalog: Catalog, stream: StreamInfo, name: str) -> TableState:
    try:
        return LakeTable(catalog.load_table(name), stream).state()
    except NoSuchTableError:
        return TableState(stream.label, name)
    except Exception as error:  # noqa: BLE001 - catalogs and object stores raise anything
        return TableState(stream.label, name, error=describe_error(error, catalog))
