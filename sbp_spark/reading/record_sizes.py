"""How long the records of a stream are: an estimate, from the record batch that is read next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from sbp_core.client import FetchItem, FetchOutcome
from sbp_core.records import split_envelopes

RECORD_BYTES_UNKNOWN: Final = 1024
"""What a record counts for as long as nothing is known of any stream."""
_SAMPLES_PER_FETCH: Final = 16
_FIRST_SAMPLES_MAX: Final = 256
"""Streams that are sampled for the first time in one go; others count as the longest known."""
_SAMPLES_AGAIN_MAX: Final = 8
"""Streams that are sampled again in one go: a sample is a whole record batch."""


class _FetchClient(Protocol):
    def fetch(
        self, items: Sequence[FetchItem], *, max_wait_ms: int = 0, min_bytes: int = 1
    ) -> Iterator[FetchOutcome]:
        """Yield one outcome per item, in any order."""
        ...


class RecordSizes:
    """Octets per record of each stream, envelope included, as stored.

    What is known of a stream is the average of one record batch, that at which reading was to go on
    when it was sampled. So it is exact for streams whose records are alike.
    """

    def __init__(self, client: _FetchClient) -> None:
        self._client = client
        self._sampled: dict[int, tuple[int, int]] = {}
        """By stream id, the one sampled longest ago first: at which offset, octets per record."""

    def estimate(self, starts: Mapping[int, int], tails: Mapping[int, int]) -> dict[int, int]:
        """Return the octets of one record of each stream of `starts`, sampling some of them.

        Streams that are away or fail are counted with what is known: reading them will tell.
        """
        hungry = {each: start for each, start in starts.items() if start < tails.get(each, start)}
        unknown = [each for each in hungry if each not in self._sampled]
        moved = [
            each
            for each, (offset, _) in self._sampled.items()
            if hungry.get(each, offset) != offset
        ]
        chosen = unknown[:_FIRST_SAMPLES_MAX] + moved[:_SAMPLES_AGAIN_MAX]
        for first in range(0, len(chosen), _SAMPLES_PER_FETCH):
            self._sample(
                {each: starts[each] for each in chosen[first : first + _SAMPLES_PER_FETCH]}
            )
        known = [size for _, size in self._sampled.values()]
        default = max(known, default=RECORD_BYTES_UNKNOWN)
        return {each: self._sampled.get(each, (0, default))[1] for each in starts}

    def _sample(self, offsets: Mapping[int, int]) -> None:
        items = [FetchItem(each, offset, offset + 1, 1) for each, offset in offsets.items()]
        for outcome in self._client.fetch(items):
            counts = [each.record_count for each in split_envelopes(outcome.payload)]
            if outcome.error is None and counts:
                size_bytes = -(-len(outcome.payload) // sum(counts))
                self._sampled.pop(outcome.stream_id, None)
                self._sampled[outcome.stream_id] = (offsets[outcome.stream_id], size_bytes)
