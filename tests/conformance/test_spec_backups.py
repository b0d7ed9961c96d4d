"""TAKE_CUT and RESTORE_METADATA, an extension: another server may refuse them all."""

from __future__ import annotations

import pytest
from spec_target import append_request, batch
from test_spec_transactions import Staging

from sbp_core.errors import InvalidRequestError
from sbp_core.wire.headers import RestoreMetadataRequest, TakeCutRequest
from sbp_core.wire.opcodes import Opcode


@pytest.fixture
def staging(target):
    """Runs a test with a new stream."""

    def run(test):
        async def body(target):
            async with (
                target.streams() as (placed,),
                target.pd() as pd,
                type(target)(placed.server.advertise_addr).pd() as server,
            ):
                await test(Staging(pd, server, placed))

        target.run(body)

    return run


async def cut(pd):
    """The ends of the streams by id, and the decided batches."""
    answers = await pd.ask(Opcode.TAKE_CUT, TakeCutRequest(20_000))
    parts = [answer.metadata for answer in answers]
    ends = {each.stream.stream_id: each.end_offset for part in parts for each in part.streams}
    return ends, {(each.producer, each.batch_number) for part in parts for each in part.txns}


def test_a_cut_is_behind_what_is_acknowledged_and_decided(staging):
    """Rule: cut-appends, cut-decisions."""

    async def body(txns):
        part = await txns.stage(0, "a", 2)
        ends, decided = await cut(txns.pd)
        assert ends[txns.placed.stream_id] == 0
        assert (txns.producer, 0) not in decided
        await txns.commit(0, part)
        (answer,) = await txns.server.ask(
            Opcode.APPEND, *append_request((txns.placed, batch(3, b"b")))
        )
        assert answer.append_responses[0].status.code == 0
        ends, decided = await cut(txns.pd)
        assert ends[txns.placed.stream_id] == 5
        assert (txns.producer, 0) in decided

    staging(body)


def test_a_backup_is_restored_onto_an_empty_cluster_only(staging):
    """Rule: restore-empty."""

    async def body(txns):
        with pytest.raises(InvalidRequestError):
            await txns.pd.ask(
                Opcode.RESTORE_METADATA, RestoreMetadataRequest(20_000, "conformance")
            )

    staging(body)
