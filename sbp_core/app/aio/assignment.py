"""The streams that are a consumer's own, where it begins, and where its positions are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from sbp_core.app.positions import Start
from sbp_core.app.record import timestamp_us_of
from sbp_core.client import AsyncClient
from sbp_core.client.types import plain_int
from sbp_core.errors import ConfigurationError, OffsetOutOfRangeError


class AsyncAssignment(Protocol):
    """Which of the selected streams a consumer reads, and where it commits how far it has come."""

    @property
    def own_interval_ms(self) -> int | None:
        """How often `own` has to be called at least; None if before each fetch is enough."""

    @property
    def has_cursors(self) -> bool:
        """Whether positions are kept."""

    async def own(self, selected: frozenset[int]) -> frozenset[int]:
        """Return those of the selected streams, by id, that are the consumer's now.

        It is called before each fetch. The consumer commits the positions of those that are no
        longer its own, and forgets them, before it calls again. Raises SbpError.
        """

    async def cursors(self, stream_ids: Sequence[int]) -> Mapping[int, int]:
        """Return the offsets at which to go on, of those streams that have one. Raises SbpError."""

    async def commit(
        self, offsets: Mapping[int, int], expected: Mapping[int, int] | None = None
    ) -> None:
        """Keep the offsets at which to go on, by stream id. Raises SbpError.

        With `expected`, the offset of a stream is kept only if the earlier offset is the expected
        one (NO_CURSOR: there is none); otherwise ConditionFailedError is raised.
        """

    async def close(self) -> None:
        """Give all streams up; the consumer has committed. Raises SbpError."""


class AsyncWholeSelection:
    """All selected streams; positions are the cursors of a group, or not kept without one."""

    def __init__(self, client: AsyncClient, group: str | None) -> None:
        self._client = client
        self._group = group

    @property
    def own_interval_ms(self) -> int | None:
        """None: nothing changes."""
        return None

    @property
    def has_cursors(self) -> bool:
        """Whether there is a group."""
        return self._group is not None

    async def own(self, selected: frozenset[int]) -> frozenset[int]:
        """Return all."""
        return selected

    async def cursors(self, stream_ids: Sequence[int]) -> Mapping[int, int]:
        """Return the group's cursors. Raises SbpError."""
        if self._group is None:
            return {}
        found = await self._client.describe_cursors(self._group, stream_ids)
        return {each.stream_id: each.next_offset for each in found}

    async def commit(
        self, offsets: Mapping[int, int], expected: Mapping[int, int] | None = None
    ) -> None:
        """Set the group's cursors. Raises SbpError."""
        if self._group is not None:
            await self._client.commit_cursors(self._group, offsets, expected=expected)

    async def close(self) -> None:
        """Do nothing."""


async def locate(client: AsyncClient, streams: Mapping[int, str], start: Start) -> dict[int, int]:
    """Return the offset of a start in each stream; `streams` has their names by id.

    Raises OffsetOutOfRangeError for an offset that a stream does not have, ConfigurationError for
    a start that is none of these, SbpError.
    """
    if not streams:
        return {}
    if isinstance(start, datetime):
        return await client.lookup_offsets(dict.fromkeys(streams, timestamp_us_of(start)))
    start = plain_int(start)
    if not isinstance(start, int) and start not in {"earliest", "latest"}:
        raise ConfigurationError(
            f"start {start!r} is not 'earliest', 'latest', an offset or a datetime"
        )
    bounds = await client.stream_bounds([*streams])
    if start == "earliest":
        return {each.stream_id: each.start_offset for each in bounds}
    if start == "latest":
        return {each.stream_id: each.next_offset for each in bounds}
    for each in bounds:
        if not each.start_offset <= start <= each.next_offset:
            raise OffsetOutOfRangeError.of(
                f"stream {streams[each.stream_id]} has no offset {start}: it begins at"
                f" {each.start_offset} and ends at {each.next_offset}; use one from there, or"
                " 'earliest' or 'latest'"
            )
    return dict.fromkeys(streams, start)
