"""A placement driver and a range server in the test's own event loop, and batches to append."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sbp_core.client import AsyncClient, Connecting, FetchItem
from sbp_core.pd.driver import PlacementDriver, PlacementDriverSettings
from sbp_core.rangeserver.range_server_settings import RangeServerSettings
from sbp_core.rangeserver.server import RangeServer
from sbp_core.record_sizes import RecordSizes
from sbp_core.records import ROWS_SCHEMA, decode_batch, encode_rows, split_envelopes
from sbp_core.tls import ServerTls

TIMESTAMP_MS = 1_700_000_000_000


def rows_batch(values: Sequence[bytes | None], stream_id: int = 0) -> bytes:
    """An encoded record batch with these values."""
    count = len(values)
    rows = pa.record_batch(
        [
            pa.nulls(count, pa.binary()),
            pa.array(values, pa.binary()),
            pa.nulls(count, ROWS_SCHEMA.field("headers").type),
            pa.array([TIMESTAMP_MS * 1000] * count, ROWS_SCHEMA.field("timestamp").type),
        ],
        schema=ROWS_SCHEMA,
    )
    return encode_rows(rows, stream_id=stream_id, timestamp_ms=TIMESTAMP_MS)


def values_of(payload: bytes | memoryview) -> list[tuple[int, bytes | None]]:
    """(offset, value) of each record of a FETCH payload."""
    return [
        (envelope.base_offset + index, value)
        for envelope in split_envelopes(payload)
        for index, value in enumerate(decode_batch(envelope).column("value").to_pylist())
    ]


@dataclass
class CoreCluster:
    pd: PlacementDriver
    server: RangeServer
    client: AsyncClient

    async def read(self, stream_id: int, start: int = 0, **options: int) -> list[tuple[int, bytes]]:
        """All records from `start` to the tail, following next_offset."""
        records: list[tuple[int, bytes]] = []
        offset = start
        while True:
            item = FetchItem(stream_id, offset, None, options.get("max_bytes", 1 << 20))
            outcomes = [outcome async for outcome in self.client.fetch([item])]
            (outcome,) = outcomes
            if outcome.error is not None:
                raise outcome.error
            found = values_of(outcome.payload)
            records += [(at, value) for at, value in found if at >= offset]
            if outcome.next_offset == offset:
                return records
            offset = outcome.next_offset


def allow_small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let range servers of this process have segments of any size."""
    (segment_bytes,) = (
        each for each in fields(RangeServerSettings) if each.name == "segment_bytes"
    )
    _, high = segment_bytes.metadata["bounds"]
    metadata = {**segment_bytes.metadata, "bounds": (1, high)}
    monkeypatch.setattr(segment_bytes, "metadata", metadata)
    monkeypatch.setattr(RecordSizes, "segment_bytes_min", 1)


def tls_settings(tls: ServerTls) -> dict[str, Any]:
    """Return the settings of a server with these files."""
    return {
        "tls_cert_file": tls.cert_file,
        "tls_key_file": tls.key_file,
        "tls_ca_file": tls.ca_file,
    }


@asynccontextmanager
async def core_cluster(
    folder: Path, *, tls: ServerTls | None = None, **server_options: object
) -> AsyncIterator[CoreCluster]:
    """Start a cluster on `folder`, on free ports; stop it at the end."""
    files = {} if tls is None else tls_settings(tls)
    ports = {name: server_options.pop(name, None) for name in ("disk", "probe", "clock")}
    pd = PlacementDriver(PlacementDriverSettings(data_dir=folder / "pd", port=0, **files))
    endpoint = await pd.start()
    server = RangeServer(
        RangeServerSettings(
            data_dir=folder / "rs", placement_driver=endpoint, port=0, **files, **server_options
        ),
        **ports,
    )
    try:
        await server.start()
        connecting = Connecting(tls=None if tls is None else tls.as_client)
        async with AsyncClient(endpoint, connecting=connecting) as client:
            yield CoreCluster(pd, server, client)
    finally:
        await server.stop()
        await pd.stop()
