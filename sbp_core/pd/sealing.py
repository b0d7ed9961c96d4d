"""Sealing a stream's open range and opening the next one.

Safety comes from the range server: it seals durably and answers where the range ends; only then is
the end recorded and a new range opened there. Each step may be repeated, so a seal that was cut
short is finished by the next one.
"""

from __future__ import annotations

from sbp_core import limits
from sbp_core.client import AsyncClient
from sbp_core.errors import SbpError, SealUnansweredError, StatusCode, StatusError
from sbp_core.pd import operations
from sbp_core.pd.membership import Membership
from sbp_core.pd.store_thread import StoreThread
from sbp_core.pd.syncing import RangeAnnouncer
from sbp_core.pd.tables import primary_address
from sbp_core.wire.headers import (
    RangeId,
    SealRangesRequest,
    SealRangesResponse,
    SealRangesResult,
    StreamRange,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS, check_status, status_for


class Sealer:
    """Seals ranges at the servers that host them."""

    def __init__(
        self, store: StoreThread, membership: Membership, announcer: RangeAnnouncer
    ) -> None:
        self._store = store
        self._membership = membership
        self._announcer = announcer

    async def seal(self, wanted: RangeId) -> SealRangesResult:
        """Seal a range; return the stream's new writable range, or why there is none.

        The server of that range is told of it in the background.
        """
        try:
            opened = await self._seal(wanted)
        except SbpError as error:
            return SealRangesResult(None, status_for(error), wanted.stream_id)
        self._announcer.announce([opened])
        return SealRangesResult(opened, SUCCESS, wanted.stream_id)

    async def _seal(self, wanted: RangeId) -> StreamRange:
        plan = await self._store.run(operations.plan_seal, wanted)
        if plan is not None and plan.sealing is None:
            return plan.answer
        sealed = None
        if plan is not None and plan.sealing is not None:
            sealed = await self._seal_at_server(plan.sealing)
        return await self._store.run(
            operations.open_next_range,
            wanted.stream_id,
            sealed,
            self._membership.live_servers(),
        )

    async def _seal_at_server(self, sealing: StreamRange) -> RangeId:
        """Return the range with its end. Raises StatusError when its server does not answer."""
        address = primary_address(sealing)
        asked = RangeId(sealing.stream_id, sealing.range_index)
        request = SealRangesRequest(limits.SEAL_TIMEOUT_MS, (asked,))
        try:
            async with AsyncClient(address) as client:
                frames = await client.call(
                    address, Opcode.SEAL_RANGE, request, timeout_ms=limits.SEAL_TIMEOUT_MS
                )
            response = decode_header(SealRangesResponse, frames[-1].header)
            check_status(response.status)
            (result,) = response.seal_responses
            check_status(result.status)
        except (SbpError, ValueError) as error:
            raise SealUnansweredError(
                StatusCode.SEAL_NO_SERVER_ANSWERED,
                f"range {sealing.range_index} of stream {sealing.stream_id} cannot be sealed now:"
                f" its server at {address or 'an unknown address'} does not answer as expected"
                f" ({error}); try again when it is back",
            ) from error
        if result.stream_range is None or result.stream_range.end_offset < sealing.start_offset:
            raise StatusError(
                StatusCode.PD_INTERNAL,
                f"the server at {address} sealed range {sealing.range_index} of stream"
                f" {sealing.stream_id} at an impossible end: {result.stream_range}",
            )
        return RangeId(asked.stream_id, asked.range_index, result.stream_range.end_offset)
