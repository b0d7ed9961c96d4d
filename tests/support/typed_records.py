"""Records of typed streams, read without Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from sbp_core.client import EARLIEST, Client, FetchItem, SchemaVersion
from sbp_core.limits import MIB
from sbp_core.records import Envelope, decode_columns, map_columns, split_envelopes


def versions_of(client: Client, stream: int | str) -> tuple[SchemaVersion, ...]:
    """All versions of a stream's schema, the newest last."""
    (info,) = client.describe_streams([stream])
    return client.describe_schemas([info.stream_id])[info.stream_id]


def envelopes_of(client: Client, stream: int | str) -> Iterator[Envelope]:
    """The record batches of a stream, in the order of their offsets."""
    (info,) = client.describe_streams([stream])
    (bounds,) = client.stream_bounds([info.stream_id])
    position = EARLIEST
    while position < bounds.next_offset:
        item = FetchItem(info.stream_id, position, bounds.next_offset, MIB)
        (outcome,) = client.fetch([item])
        if outcome.error is not None:
            raise outcome.error
        yield from split_envelopes(outcome.payload)
        position = outcome.next_offset


def typed_rows(client: Client, stream: int | str) -> pa.Table:
    """The rows of a typed stream, in its newest schema and in the order of their offsets."""
    versions = versions_of(client, stream)
    schemas = {each.schema.fingerprint: each.schema for each in versions}
    newest = versions[-1].schema.arrow
    batches = []
    for envelope in envelopes_of(client, stream):
        assert envelope.schema_fingerprint is not None
        rows = decode_columns(envelope, schemas[envelope.schema_fingerprint])
        batches.append(map_columns(rows, newest))
    return pa.Table.from_batches(batches, newest)
