"""Which streams a consumer reads: all that it selects, or a share of those of its group."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, Protocol

from sbp_core import group_limits
from sbp_core.app import defaults
from sbp_core.app.gates import Gate
from sbp_core.app.positions import Start
from sbp_core.app.record import timestamp_us_of
from sbp_core.client import AsyncClient, Membership
from sbp_core.client.types import plain_int
from sbp_core.errors import ConfigurationError, MemberUnknownError, OffsetOutOfRangeError, SbpError

_LOG: Final = logging.getLogger("sbp_core.app")
_HEARTBEATS_PER_SESSION: Final = 3


class AsyncAssignment(Protocol):
    """Which of the selected streams a consumer reads, and where its positions are kept."""

    @property
    def own_interval_ms(self) -> int | None:
        """The longest time between two calls of `own`; None: one before each fetch is enough."""

    @property
    def has_cursors(self) -> bool:
        """Whether positions are kept."""

    async def own(self, selected: frozenset[int]) -> frozenset[int]:
        """Return the ids of the selected streams that the consumer reads now. Raises SbpError.

        The consumer calls it before each fetch. Before the next call it commits and forgets its
        positions in the streams that are no longer in the result.
        """

    async def cursors(self, stream_ids: Sequence[int]) -> Mapping[int, int]:
        """Return the kept offsets by stream id, without streams that have none. Raises SbpError."""

    async def commit(
        self, offsets: Mapping[int, int], expected: Mapping[int, int] | None = None
    ) -> None:
        """Keep the offset of the next record to read of each stream, by id. Raises SbpError.

        `expected` has the offsets that are kept now (NO_CURSOR: none). Raises ConditionFailedError
        for a stream with another offset, which is not changed.
        """

    async def close(self) -> None:
        """Give all streams up, after the last commit of the consumer. Raises SbpError."""


class AsyncWholeSelection:
    """All selected streams. Positions are the cursors of the group, and not kept without one."""

    def __init__(self, client: AsyncClient, group: str | None) -> None:
        self._client = client
        self._group = group

    @property
    def own_interval_ms(self) -> int | None:
        """None: the streams of the consumer never change."""
        return None

    @property
    def has_cursors(self) -> bool:
        """Whether there is a group."""
        return self._group is not None

    async def own(self, selected: frozenset[int]) -> frozenset[int]:
        """Return all selected streams."""
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
    """Return the offset of a start in each stream, by id; `streams` has the names by id.

    Raises OffsetOutOfRangeError for an offset that a stream does not have, ConfigurationError for
    a start of another kind, SbpError.
    """
    if not streams:
        return {}
    if isinstance(start, datetime):
        return await client.lookup_offsets(dict.fromkeys(streams, timestamp_us_of(start)))
    at = plain_int(start)
    if not isinstance(at, int) and start not in {"earliest", "latest"}:
        raise ConfigurationError(
            f"start {start!r} is not 'earliest', 'latest', an offset or a datetime"
        )
    bounds = await client.stream_bounds([*streams])
    if start == "earliest":
        return {each.stream_id: each.start_offset for each in bounds}
    if start == "latest":
        return {each.stream_id: each.next_offset for each in bounds}
    for each in bounds:
        if not each.start_offset <= at <= each.next_offset:
            raise OffsetOutOfRangeError.of(
                f"stream {streams[each.stream_id]} has no offset {start}; use one from"
                f" {each.start_offset} to {each.next_offset}, or 'earliest' or 'latest'"
            )
    return dict.fromkeys(streams, at)


class AsyncMember:
    """The assignment of a group's member: the placement driver divides the streams.

    A worker sends heartbeats while the caller works on a record, for `max_poll_interval_ms` at
    most. The consumer asks for its streams between two records, and no more often than heartbeats
    are sent, so the bound is exact to within the time between two heartbeats. When an answer lacks
    a stream, the consumer commits its position in the stream, and the next heartbeat gives the
    stream up. The placement driver expels a member that was silent for too long. Others may read
    the streams of an expelled member, so it drops all positions, uncommitted ones too, and joins
    again.
    """

    def __init__(
        self,
        client: AsyncClient,
        group: str,
        patterns: Sequence[str],
        session_timeout_ms: int = group_limits.GROUP_SESSION_MS,
        max_poll_interval_ms: int = defaults.MAX_POLL_INTERVAL_MS,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._clock = clock
        self._group = group
        self._patterns = tuple(patterns)
        self._session_timeout_ms = session_timeout_ms
        self._max_poll_interval_ms = max_poll_interval_ms
        self._heartbeat_seconds = session_timeout_ms / 1000 / _HEARTBEATS_PER_SESSION
        self._gate = Gate()
        self._membership: Membership | None = None
        self._member_id: str | None = None
        """The id under which the placement driver may know the member."""
        self._own: frozenset[int] = frozenset()
        """The streams that the consumer reads."""
        self._reported: frozenset[int] = frozenset()
        """The streams that the last heartbeat named."""
        self.is_waiting: Callable[[], bool] = lambda: False
        """Whether the caller waits for the consumer now, and does not work on a record."""
        self._is_closed = False
        self._polled_at = 0.0
        """When the consumer asked for its streams last."""
        self._error: SbpError | None = None
        """The error that ended the worker."""
        self._expulsion = ""

    @property
    def own_interval_ms(self) -> int | None:
        """The time between heartbeats: their answers may change the streams of the member."""
        return self._session_timeout_ms // _HEARTBEATS_PER_SESSION

    @property
    def has_cursors(self) -> bool:
        """True: members have a group."""
        return True

    async def own(self, selected: frozenset[int]) -> frozenset[int]:
        """Return the streams of the member as of the last heartbeat.

        If the consumer has given streams up since, a heartbeat that says so comes first.
        """
        self._polled_at = self._clock()
        if self._membership is None and not self._own and not self._is_closed:
            await self._join()
        self._gate.notify()
        while self._membership is not None and self._own != self._reported:
            self._check_worker()
            await self._gate.wait(None)
        self._check_worker()
        if self._membership is None:  # expelled: the consumer drops its streams first
            self._own = frozenset()
        else:
            self._own = frozenset(self._membership.stream_ids) & selected
        return self._own

    async def cursors(self, stream_ids: Sequence[int]) -> Mapping[int, int]:
        """Return the group's cursors."""
        found = await self._client.describe_cursors(self._group, stream_ids)
        return {each.stream_id: each.next_offset for each in found}

    async def commit(
        self, offsets: Mapping[int, int], expected: Mapping[int, int] | None = None
    ) -> None:
        """Set the group's cursors. Raises MemberUnknownError if the member was expelled."""
        membership = self._membership
        if membership is None:
            raise MemberUnknownError.of(
                f"nothing was committed for group {self._group}: {self._expulsion}; the records are"
                " read again, perhaps by other members"
            )
        try:
            await self._client.commit_cursors(
                self._group, offsets, membership=membership, expected=expected
            )
        except MemberUnknownError as error:
            self._expel(str(error))
            raise

    async def close(self) -> None:
        """Leave the group. After a cancellation it may be called again."""
        self._is_closed = True
        self._membership = None
        self._gate.notify()
        if self._member_id is not None:
            await self._client.leave_group(self._group, self._member_id)
            self._member_id = None

    async def _join(self) -> None:
        # If this is cancelled the placement driver may know the member: the next try has its id.
        self._member_id = self._member_id or uuid.uuid4().hex
        membership = await self._client.join_group(
            self._group,
            self._patterns,
            member_id=self._member_id,
            session_timeout_ms=self._session_timeout_ms,
        )
        if self._is_closed:  # by another task, since
            await self._client.leave_group(self._group, membership.member_id)
            return
        self._membership = membership
        self._own = self._reported = frozenset()
        self._gate.start(self._beat)

    async def _beat(self) -> None:
        """Send heartbeats until the member leaves, or is expelled."""
        beat_at = self._clock() + self._heartbeat_seconds
        try:
            while True:
                while self._membership is not None and self._own == self._reported:
                    seconds = beat_at - self._clock()
                    if seconds <= 0:
                        break
                    await self._gate.wait(seconds)
                membership, held = self._membership, self._own
                if membership is None:
                    return
                if self.is_waiting():
                    self._polled_at = self._clock()
                idle_ms = 1000 * (self._clock() - self._polled_at)
                if idle_ms > self._max_poll_interval_ms + 1000 * self._heartbeat_seconds:
                    await self._give_up(membership, idle_ms)
                    return
                answer = await self._client.group_heartbeat(membership, held)
                beat_at = self._clock() + self._heartbeat_seconds
                if self._membership is membership:
                    self._membership, self._reported = answer, held
                self._gate.notify()
        except MemberUnknownError as error:
            self._expel(str(error))
        except SbpError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(SbpError(f"the heartbeats of group {self._group} were ended by {error!r}"))
            raise

    def _fail(self, error: SbpError) -> None:
        self._error = error
        self._gate.notify()

    def _check_worker(self) -> None:
        """Raise the error that ended the worker, once."""
        if self._error is not None:
            error, self._error = self._error, None
            self._membership = self._member_id = None
            raise error

    async def _give_up(self, membership: Membership, idle_ms: float) -> None:
        """Leave the group, as the caller works on a record for too long."""
        self._expel(
            f"the consumer was not asked for a record for {idle_ms / 1000:.0f} s, longer than"
            f" max_poll_interval_ms={self._max_poll_interval_ms} allows: raise it, or work on"
            " records faster"
        )
        with suppress(SbpError):
            await self._client.leave_group(self._group, membership.member_id)

    def _expel(self, reason: str) -> None:
        if self._membership is None:
            return
        self._membership = self._member_id = None
        self._expulsion = f"the member was expelled: {reason}"
        self._gate.notify()
        _LOG.warning(
            "member expelled group=%s streams=%d: %s; it joins again, and records that it did not"
            " commit are read again, perhaps by others",
            *(self._group, len(self._own), reason),
        )
