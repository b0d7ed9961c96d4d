"""The stream of the audit events at the placement driver: it is made, and protected.

The placement driver that leads makes it as soon as there is a range server, and adds replicas as
there are more servers, up to REPLICA_COUNT. While the stream is protected nobody else can change
it, so it is then also brought in line with the retention that the settings have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sbp_core.access.rights import AUDIT_STREAM
from sbp_core.errors import SbpError
from sbp_core.pd.metadata.store import StoreThread
from sbp_core.pd.model import StreamRecord
from sbp_core.pd.range_servers import Membership
from sbp_core.pd.streams import change_operations as changes
from sbp_core.pd.streams import stream_operations as operations
from sbp_core.pd.streams.fail_over import FailOver
from sbp_core.pd.streams.sealing import RangeAnnouncer
from sbp_core.server.guard import Protection
from sbp_core.server.runtime import Clock, cancel_all
from sbp_core.wire.headers import Stream
from sbp_core.wire.status import check_status

_LOG: Final = logging.getLogger(__name__)
_REPLICA_COUNT: Final = 3
_ABSENT_MS: Final = 500
_PRESENT_MS: Final = 10_000
"""Pauses between looks at the stream, while it is absent and once it is there."""


@dataclass(frozen=True, slots=True)
class AuditPolicy:
    """How the stream is kept; a `retention_ms` of 0 keeps its records for ever."""

    retention_ms: int
    is_protected: bool


class AuditProtection(Protection):
    """Protects the stream at the placement driver, which knows its name."""

    def __init__(self, store: StoreThread) -> None:
        super().__init__("placement drivers")
        self._store = store

    async def among(self, stream_ids: Collection[int]) -> Collection[int]:
        """Return the id of the stream, if it is one of these."""
        (found,) = await self._store.run(lambda store: store.streams_by_name([AUDIT_STREAM]))
        return set() if found is None else {found.stream_id} & set(stream_ids)


class AuditKeeper:
    """Makes the stream, and brings it in line with a policy, from `start` to `stop`."""

    def __init__(
        self,
        store: StoreThread,
        membership: Membership,
        announcer: RangeAnnouncer,
        fail_over: FailOver,
        *,
        clock: Clock,
        policy: AuditPolicy,
    ) -> None:
        self._store = store
        self._membership = membership
        self._announcer = announcer
        self._fail_over = fail_over
        self._clock = clock
        self._policy = policy
        self._task: asyncio.Task[None] | None = None
        self._fault = ""
        """Why the last look failed."""

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            await cancel_all([self._task])

    async def _run(self) -> None:
        while True:
            is_there = False
            try:
                is_there = await self._keep()
                self._fault = ""
            except SbpError as error:
                if self._fault != str(error):
                    _LOG.warning("audit stream not kept: %s; retrying", error)
                self._fault = str(error)
            await asyncio.sleep((_PRESENT_MS if is_there else _ABSENT_MS) / 1000)

    async def _keep(self) -> bool:
        """Make the stream, or change it; return whether it is there. Raises SbpError."""
        (found,) = await self._store.run(lambda store: store.streams_by_name([AUDIT_STREAM]))
        replica_count = min(_REPLICA_COUNT, len(self._membership.live_servers()))
        if found is None:
            return replica_count > 0 and await self._create(replica_count)
        if self._policy.is_protected:
            wanted = max(replica_count, found.replica_count)
            is_as_wanted = (found.replica_count, found.retention_period_ms) == (
                wanted,
                self._policy.retention_ms,
            )
            if not is_as_wanted:
                await self._change(found, wanted)
        return True

    async def _create(self, replica_count: int) -> bool:
        wanted = Stream(
            name=AUDIT_STREAM,
            replica_nums=replica_count,
            retention_period_ms=self._policy.retention_ms,
        )
        servers, now_ms = self._membership.live_servers(), self._clock.wall_ms()
        (result,) = await self._store.run(
            operations.create_streams, [wanted], servers, now_ms, is_own=True
        )
        check_status(result.status)
        assert result.stream_range is not None
        _LOG.info("audit stream created replicas=%d", replica_count)
        self._announcer.announce([result.stream_range])
        return True

    async def _change(self, found: StreamRecord, replica_count: int) -> None:
        wanted = Stream(
            found.stream_id,
            replica_nums=replica_count,
            retention_period_ms=self._policy.retention_ms,
        )
        servers = self._membership.live_servers()
        (result,), moved = await self._store.run(changes.update_streams, [wanted], servers)
        check_status(result.status)
        _LOG.info("audit stream changed replicas=%d", replica_count)
        await self._fail_over.renew(moved)
