"""Readers on the machine of a range server read its files; what they get is what it would send."""

from __future__ import annotations

import asyncio
import random

import pytest

from sbp_core.client import (
    AppendItem,
    Writer,
)
from sbp_core.wire.headers import (
    AppendInfo,
    AppendRequest,
    StreamRange,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error
from tests.support.appends import end, one_driven_stream
from tests.support.cluster import rows_batch
from tests.support.local_reads import (
    SMALL_SEGMENTS,
    append,
    check_same,
    large_batch,
    watch_looks,
)
from tests.support.wire import RawClient


@pytest.fixture(autouse=True)
def looks(monkeypatch):
    return watch_looks(monkeypatch)


def test_batches_of_all_kinds_in_many_segments(tmp_path, looks):
    async def body(cluster, stream_id, client):
        rng = random.Random(1)
        writer = Writer("w")
        for number in range(40):
            match rng.choice(("plain", "numbered", "staged", "dropped", "small")):
                case "plain":
                    await append(cluster, stream_id, [number])
                case "numbered":
                    await append(cluster, stream_id, [number], writer=writer)
                case "staged":
                    await stage_large(client, stream_id, f"t{number}", number)
                    await append(cluster, stream_id, [number])
                    ended = await end(client, stream_id, f"t{number}", count=4)
                    assert isinstance(ended, tuple)
                case "dropped":
                    await stage_large(client, stream_id, f"t{number}", number)
                    await end(client, stream_id, f"t{number}", commit=False)
                case "small":
                    item = AppendItem(stream_id, rows_batch([b"small"], stream_id))
                    await cluster.client.append([item])
        await check_same(cluster, stream_id)
        places = [place for placed in looks.found for place in placed.places]
        assert len({place.segment for place in places}) > 3
        assert {place.prefix_length > 0 for place in places} == {True, False}
        assert looks.failed_count == 0

    async def main():
        async with one_driven_stream(tmp_path, **SMALL_SEGMENTS) as parts:
            await asyncio.wait_for(body(*parts), 120)

    asyncio.run(main())


async def stage_large(client: RawClient, stream_id: int, txn_id: str, seed: int) -> None:
    batches = [large_batch(stream_id, seed), large_batch(stream_id, seed + 1)]
    infos = tuple(
        AppendInfo(
            StreamRange(stream_id=stream_id, range_index=0),
            at,
            len(batch),
            stream_id,
            None,
            at,
            txn_id,
        )
        for at, batch in enumerate(batches)
    )
    (answer,) = await client.ask(Opcode.APPEND, AppendRequest(0, infos), batches)
    assert [maybe_error(result.status) for result in answer.append_responses] == [None, None]
