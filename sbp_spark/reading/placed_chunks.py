"""Batches that were left in a range server's files on this machine: read when they are decoded.

The task itself reads them, a few at a time, which are still in the processor's caches when it
decodes them; a thread that reads ahead would have to take turns with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from sbp_core.client import PlacedBatches, PlacedPiece
from sbp_spark.reading.planning import StreamSpan
from sbp_spark.reading.prefetch import Chunk, FetchClient, fetch_chunks


class PlacesClient(FetchClient, Protocol):
    """What is needed of a client."""

    def read_places(self, placed: PlacedBatches) -> Iterator[PlacedPiece]:
        """Yield batches, some at a time; ends early where they cannot be read."""
        ...


def read_placed_chunks(
    client: PlacesClient,
    chunks: Iterable[Chunk],
    spans: Sequence[StreamSpan],
    *,
    round_bytes: int,
    is_loss_fatal: bool,
) -> Iterator[Chunk]:
    """Yield chunks of `fetch_chunks` with their octets, in the same order.

    What cannot be read, as files are removed and rewritten at any time, is fetched. Raises as
    `fetch_chunks` does.
    """
    for chunk in chunks:
        placed = chunk.maybe_placed
        if placed is None:
            yield chunk
            continue
        span = spans[chunk.span_index]
        position = max(span.start_offset, placed.start_offset)
        end_offset = min(span.end_offset, placed.end_offset)
        for piece in client.read_places(placed):
            yield Chunk(chunk.span_index, piece.payload)
            position = piece.end_offset
        if position < end_offset:
            rest = replace(span, start_offset=position, end_offset=end_offset)
            for fetched in fetch_chunks(
                client, [rest], round_bytes=round_bytes, is_loss_fatal=is_loss_fatal
            ):
                yield replace(fetched, span_index=chunk.span_index)
