"""Questions of a range server to the placement driver."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from sbp_core.log.disk import OsDisk
from sbp_core.rangeserver.hosting import PlacedRange
from sbp_core.rangeserver.housekeeping.retention import Retention
from sbp_core.rangeserver.membership import Membership
from sbp_core.wire.headers import DescribeStreamResult, DescribeStreamsResponse, Stream
from sbp_core.wire.opcodes import Opcode
from tests.support.scripted_peer import Exchange, ScriptedPeer


def test_a_placement_driver_that_does_not_know_the_limit_in_bytes_sets_none(
    tmp_path: Path, peer: ScriptedPeer
) -> None:
    def describe(exchange: Exchange) -> None:
        known = DescribeStreamResult(Stream(4, 1, 60))
        exchange.answer(DescribeStreamsResponse(0, (known,)))

    async def main() -> dict[int, Retention]:
        measure: Any = None
        high_water: Any = None
        membership = Membership(
            peer.endpoint, tmp_path, OsDisk(), 1000, measure, high_water=high_water
        )
        try:
            return await membership.find_retentions([4])
        finally:
            await membership.leave()

    peer.script(Opcode.DESCRIBE_STREAMS, describe)
    assert asyncio.run(main()) == {4: Retention(period_ms=60)}


def test_a_server_without_an_id_has_no_ranges(peer: ScriptedPeer, tmp_path: Path) -> None:
    """Asked for the ranges of no server in particular, the placement driver lists all."""
    asked: list[Exchange] = []
    peer.script(Opcode.LIST_RANGES, asked.append)

    async def main() -> dict[tuple[int, int], PlacedRange]:
        unused: Any = None
        membership = Membership(peer.endpoint, tmp_path, OsDisk(), 1000, unused, high_water=unused)
        try:
            return await membership.list_hosted_ranges([4])
        finally:
            await membership.leave()

    assert asyncio.run(main()) == {}
    assert asked == []
