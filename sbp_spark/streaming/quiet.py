"""A query that has read everything: what its next look may take for granted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from sbp_spark.reading.offsets import SourceOffset
from sbp_spark.streaming.micro_batch import Way
from sbp_spark.streaming.snapshot import Snapshot


@dataclass(frozen=True)
class Quiet:
    """A look from `offset` at `snapshot` that showed nothing new; `answer` is what Spark was told.

    Another look does not either, whatever time it is, as long as the snapshot is the same.
    """

    offset: SourceOffset
    answer: dict[str, Any]
    snapshot: Snapshot

    @cached_property
    def known(self) -> Mapping[int, int]:
        """How far the streams are read."""
        return self.offset.next_offsets()


def is_quiet(way: Way) -> bool:
    """Whether nothing lies ahead, and neither the time nor a server that is back changes that."""
    is_whole = not (way.snapshot.away or way.endings or way.losses or way.bases)
    return is_whole and way.record_count == 0


NOTHING_AHEAD: Final = Way(Snapshot(), {}, {}, {}, {})
