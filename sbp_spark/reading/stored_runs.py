"""Record batches of a span that follow on one another, as they were fetched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sbp_core.client import ReceivedBatches
from sbp_core.errors import ProtocolError
from sbp_core.records import Envelope
from sbp_spark.reading.partition_planning import StreamSpan
from sbp_spark.reading.prefetch import describe_span
from sbp_spark.spark_internals.task_log import LOG

ENVELOPES_AT_ONCE: Final = 1_000
"""The number of envelopes that are kept until their batches, which may be tiny, are decoded."""


class BrokenSequenceError(ProtocolError):
    """The offsets that were fetched have a gap or an overlap."""


class Skipped:
    """Counts the batches that came as their heads alone, because no row of them is wanted."""

    def __init__(self) -> None:
        self._batches = self._records = self._bytes = 0

    def add(self, envelope: Envelope) -> None:
        """Count a batch."""
        self._batches += 1
        self._records += envelope.record_count
        self._bytes += envelope.skipped_bytes or 0

    def log(self) -> None:
        """Log how much was not read."""
        if self._batches:
            LOG.info(
                "batches skipped batches=%d records=%d bytes=%d: their statistics show that no row"
                " matches the condition",
                self._batches,
                self._records,
                self._bytes,
            )


def runs_of(
    batches: ReceivedBatches, span: StreamSpan, position: int, skipped: Skipped
) -> Iterator[tuple[Sequence[Envelope], int]]:
    """Yield some batches at a time, which go on at `position`, and the offset up to which they go.

    The first batch of a fetch may contain earlier records, if it is the first batch of the span, or
    if the server has merged small batches since the last fetch. Batches behind the end of the span
    are left out. Skipped batches are counted, and there is no envelope for their offsets.
    Raises BrokenSequenceError.
    """
    envelopes: list[Envelope] = []
    for index, envelope in enumerate(batches.envelopes()):
        if position >= span.end_offset:
            break
        first = envelope.base_offset
        is_overlapping = not index and first < position < envelope.end_offset
        if first != position and not is_overlapping:
            raise BrokenSequenceError(
                f"{describe_span(span)}: expected offset {position} next, found a record batch of"
                f" offsets [{first}, {envelope.end_offset}); records are missing or duplicated on"
                " the range server; run `sbp log check` there"
            )
        is_full = len(envelopes) == ENVELOPES_AT_ONCE
        if envelopes and (is_full or is_overlapping or envelope.is_skipped):
            yield envelopes, position
            envelopes = []
        position = min(envelope.end_offset, span.end_offset)
        if envelope.is_skipped:
            skipped.add(envelope)
            yield (), position
        else:
            envelopes.append(envelope)
    if envelopes:
        yield envelopes, position
