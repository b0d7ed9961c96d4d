"""Topics and partitions as streams.

The streams `T-0`, `T-1`, ... without a gap are the partitions of topic `T`. Any other stream is a
topic with one partition. A stream `T` beside `T-0` cannot be reached: rename one of them.
"""

from __future__ import annotations

import fnmatch
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

from sbp_core.client.async_client import AsyncClient
from sbp_core.client.types import StreamInfo

_PARTITION: Final = re.compile(r"(.+)-(0|[1-9][0-9]*)", re.ASCII)
_KEPT_SECONDS: Final = 1.0
"""How long it is not asked whether streams have changed."""
_LISTED_SECONDS: Final = 30.0
"""How long streams are not listed again while none changes: the rights of a client may."""
TOPIC_LENGTH_MAX: Final = 249


def topics_of(streams: Iterable[StreamInfo]) -> dict[str, tuple[StreamInfo, ...]]:
    """Return the partitions of each topic, by name."""
    named = {each.name: each for each in streams if each.name is not None}
    topics: dict[str, tuple[StreamInfo, ...]] = {}
    taken: set[str] = set()
    for name, first in named.items():
        match = _PARTITION.fullmatch(name)
        if match is not None and match[2] == "0":
            topic = match[1]
            parts = [first]
            while (following := named.get(f"{topic}-{len(parts)}")) is not None:
                parts.append(following)
            topics[topic] = tuple(parts)
            taken.update(each.name for each in parts if each.name is not None)
    for name, stream in named.items():
        if name not in taken:
            topics.setdefault(name, (stream,))
    return topics


@dataclass(slots=True)
class _Known:
    """The topics that a client sees, and when they were asked for."""

    topics: Mapping[str, tuple[StreamInfo, ...]]
    by_stream: Mapping[int, tuple[str, int]]
    revision: int | None
    listed_at: float
    found_at: float


@dataclass(slots=True)
class Topics:
    """The topics that callers see: those whose name matches one of `patterns` (`*` for any text).

    They are a second old at most. Before a topic, partition or stream is called unknown, the
    cluster is asked whether there are new ones.
    """

    patterns: Sequence[str] = ("*",)
    _known: WeakKeyDictionary[AsyncClient, _Known] = field(default_factory=WeakKeyDictionary)

    def shows(self, topic: str) -> bool:
        """Whether callers see a topic of that name."""
        return any(fnmatch.fnmatchcase(topic, each) for each in self.patterns)

    def forget(self, client: AsyncClient) -> None:
        """Ask again next time, as topics were created or deleted."""
        self._known.pop(client, None)

    async def all(self, client: AsyncClient) -> Mapping[str, tuple[StreamInfo, ...]]:
        """Return the partitions of all topics, by name."""
        return (await self._current(client)).topics

    async def partitions(
        self, client: AsyncClient, topic: str, least: int = 1
    ) -> tuple[StreamInfo, ...]:
        """Return the partitions of a topic, of which `least` are expected; none without a topic."""
        known = await self._current(client)
        if len(known.topics.get(topic, ())) < least:
            known = await self._current(client, age_max_s=0.0)
        return known.topics.get(topic, ())

    async def maybe_stream(
        self, client: AsyncClient, topic: str, partition: int
    ) -> StreamInfo | None:
        """Return the stream of a partition, None if there is none."""
        found = await self.partitions(client, topic, partition + 1)
        return found[partition] if 0 <= partition < len(found) else None

    async def stream_id(self, client: AsyncClient, topic: str, partition: int) -> int | None:
        """Return the id of the stream of a partition, None if there is none."""
        stream = await self.maybe_stream(client, topic, partition)
        return None if stream is None else stream.stream_id

    async def topic_partition(
        self, client: AsyncClient, stream_ids: Collection[int]
    ) -> dict[int, tuple[str, int]]:
        """Return topic and partition of streams, by id; those that no topic shows are left out."""
        known = await self._current(client)
        if not known.by_stream.keys() >= set(stream_ids):
            known = await self._current(client, age_max_s=0.0)
        return {each: known.by_stream[each] for each in stream_ids if each in known.by_stream}

    async def _current(self, client: AsyncClient, age_max_s: float = _KEPT_SECONDS) -> _Known:
        known = self._known.get(client)
        now = time.monotonic()
        if known is not None and known.found_at > now - age_max_s:
            return known
        since = -1 if known is None or known.revision is None else known.revision
        changes = await client.metadata_changes(since)
        revision = None if changes is None else changes.revision
        is_same = known is not None and revision is not None and revision == known.revision
        if known is not None and is_same and known.listed_at >= now - _LISTED_SECONDS:
            known.found_at = now
        else:
            found = topics_of(await client.list_streams())
            topics = {topic: parts for topic, parts in found.items() if self.shows(topic)}
            by_stream = {
                stream.stream_id: (topic, index)
                for topic, parts in topics.items()
                for index, stream in enumerate(parts)
            }
            known = self._known[client] = _Known(topics, by_stream, revision, now, now)
        return known
