"""Streams that a query for rows reads: those that cannot become typed any more."""

from __future__ import annotations

from collections.abc import Mapping

from sbp_core.client import Client
from sbp_spark.reading.stream_kinds import StreamKinds
from sbp_spark.streaming.snapshot import Snapshot


class PlainStreams:
    """Holds streams back until they have records and no schema, so that these are plain.

    A query has nothing to read in a stream that is held back, and reads it from its first record.
    """

    def __init__(self, kinds: StreamKinds) -> None:
        self._kinds = kinds
        self._seen = Snapshot()
        self._shown = Snapshot()

    def show(self, client: Client, seen: Snapshot, known: Mapping[int, int]) -> Snapshot:
        """Return what is seen of plain streams, and of those that were read before, `known`.

        It is the same object as long as `seen` is. Raises SbpError.
        """
        if seen is self._seen and known.keys() <= self._shown.streams.keys():
            return self._shown
        unsure = [each for each in seen.streams if each not in known and _may_have(seen, each)]
        typed = self._kinds.find_typed(client, unsure)
        plain = {each for each in unsure if each not in typed}
        self._seen, self._shown = seen, seen.only(known.keys() | plain)
        return self._shown


def _may_have(seen: Snapshot, stream_id: int) -> bool:
    """Whether a stream has, or had, records; of one whose server is away nobody knows."""
    bound = seen.bounds.get(stream_id)
    return bound is None or bound.next_offset > 0
