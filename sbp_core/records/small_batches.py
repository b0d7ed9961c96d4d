"""Small record batches that follow on one another, so that they can be decoded together.

To decode a batch alone takes as long as to copy some ten KiB, however few rows it has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from sbp_core import limits
from sbp_core.errors import RecordBatchError
from sbp_core.records.arrow_body import decode_joined
from sbp_core.records.arrow_message import (
    BUFFER_ALIGNMENT_BYTES,
    Outline,
    are_sound,
    check_outline,
    read_outline,
)
from sbp_core.records.columns import COLUMNS_ENCODING
from sbp_core.records.envelope import Envelope
from sbp_core.records.joined_columns import maybe_join_columns
from sbp_core.records.rows import ROWS_ENCODING

_SMALL_BYTES: Final = 32 * limits.KIB
_MESSAGE_ENCODINGS: Final = frozenset({ROWS_ENCODING, COLUMNS_ENCODING})


class _Small(NamedTuple):
    """A small batch: what it decodes to, and what is still to be checked of its message."""

    decoded_bytes: int
    maybe_unchecked: Outline | None


class Run:
    """Small batches in one encoding and schema; or a single one of any kind."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self.row_count = 0
        self.decoded_bytes = 0
        self._unchecked: list[Outline] = []

    def takes(self, envelope: Envelope) -> bool:
        """Whether a small batch may be added."""
        return not self.envelopes or _kind(self.envelopes[0]) == _kind(envelope)

    def add(self, envelope: Envelope, maybe_small: _Small | None) -> None:
        """Add a batch."""
        self.envelopes.append(envelope)
        self.row_count += envelope.record_count
        if maybe_small is not None:
            self.decoded_bytes += maybe_small.decoded_bytes
            if maybe_small.maybe_unchecked is not None:
                self._unchecked.append(maybe_small.maybe_unchecked)

    def maybe_joined(
        self, schema: pa.Schema, schema_message: bytes, wanted: Sequence[int] | None = None
    ) -> pa.RecordBatch | None:
        """Return the rows of all batches, fully validated; None for one, or where one is damaged.

        `schema` is theirs, `schema_message` the same as Arrow's streams begin with it. Of its
        columns only those at the indexes `wanted` are decoded and validated, if these are given.
        """
        if len(self.envelopes) == 1 or not are_sound(self._unchecked):
            return None
        bodies = [each.body for each in self.envelopes]
        with contextlib.suppress(pa.ArrowException, OSError):
            if len(self._unchecked) == len(bodies):
                gathered = maybe_join_columns(bodies, self._unchecked, schema, wanted)
                if gathered is not None:
                    return gathered
            return decode_joined(bodies, schema_message, wanted)
        return None


def small_runs(
    envelopes: Iterable[Envelope], *, rows_enough: int, bytes_enough: int
) -> Iterator[Run]:
    """Yield all batches in their order, small ones of a kind together, any other alone.

    A run ends when it has `rows_enough` rows or decodes to `bytes_enough` octets. Raises
    DamagedBatchError for a message that is no rows of Arrow's, before batches that come earlier.
    """
    run = Run()
    for envelope in envelopes:
        small = _maybe_small(envelope)
        if run.envelopes and (small is None or not run.takes(envelope)):
            yield run
            run = Run()
        run.add(envelope, small)
        if small is None or run.row_count >= rows_enough or run.decoded_bytes >= bytes_enough:
            yield run
            run = Run()
    if run.envelopes:
        yield run


def _maybe_small(envelope: Envelope) -> _Small | None:
    body = envelope.body
    is_short = len(body) < _SMALL_BYTES and len(body) % BUFFER_ALIGNMENT_BYTES == 0
    if not is_short or envelope.encoding not in _MESSAGE_ENCODINGS:
        return None
    try:
        outline = read_outline(body, record_count=envelope.record_count)
        if outline.compression is None:
            return _Small(outline.buffers_bytes, outline)
        decoded_bytes = check_outline(outline, body).decoded_bytes
    except RecordBatchError as error:
        raise envelope.damage(error) from error
    return _Small(decoded_bytes, None) if decoded_bytes < _SMALL_BYTES else None


def _kind(envelope: Envelope) -> tuple[str | None, ...]:
    return envelope.encoding, envelope.schema_fingerprint, envelope.timestamp_column
