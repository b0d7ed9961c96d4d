"""Appends that are numbered by their writers: each is stored once, even if repeated."""

import asyncio
import dataclasses
import itertools
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from sbp_core import limits
from sbp_core.client import AppendItem, AsyncClient, StreamSpec, Writer
from sbp_core.errors import (
    InvalidRequestError,
    RequestTimeoutError,
    StatusCode,
    WriterGapError,
    WriterRepeatError,
    WriterUnknownError,
)
from sbp_core.log.entry import Entry
from sbp_core.log.states.writer_states import NumberedBatch, WriterState, encode_writers
from sbp_core.pd import PlacementDriver
from sbp_core.pd.placement import Placement
from sbp_core.rangeserver.appending.append_items import Writers
from sbp_core.rangeserver.server import RangeServer
from sbp_core.segment_format import EntryKind
from sbp_core.session.negotiation import NO_WISHES
from sbp_core.settings.server_settings import PlacementDriverSettings, RangeServerSettings
from sbp_core.wire.headers import AppendInfo, AppendRequest, StreamRange
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error
from tests.support.appends import WAIT_SECONDS, eventually, numbered, one_stream, send, values
from tests.support.cluster import core_cluster, rows_batch
from tests.support.disk import HeldDisk
from tests.support.wire import RawClient


def run(body):
    asyncio.run(asyncio.wait_for(body, 2 * WAIT_SECONDS))


def test_a_repeat_is_answered_with_the_place_and_time_of_the_original(tmp_path):
    async def body():
        async with one_stream(tmp_path) as (cluster, stream_id, client):
            request, batches = numbered(stream_id, "a", "b", "c")
            first, second = [
                (await client.ask(Opcode.APPEND, request, batches))[0] for _ in range(2)
            ]
            assert first == second
            assert await send(client, stream_id, "d", first=3) == [3]
            assert await values(cluster, stream_id) == ["a", "b", "c", "d"]

    run(body())


def test_writers_and_streams_count_for_themselves(tmp_path):
    async def body():
        async with one_stream(tmp_path) as (cluster, stream_id, client):
            (other,) = await cluster.client.create_streams([StreamSpec("t")])
            assert await send(client, stream_id, "a") == [0]
            assert await send(client, stream_id, "b", writer="v") == [1]
            assert await send(client, other.stream_id, "c") == [0]
            assert await values(cluster, stream_id) == ["a", "b"]

    run(body())


def test_a_gap_names_what_is_expected_and_appends_nothing(tmp_path):
    async def body():
        async with one_stream(tmp_path) as (cluster, stream_id, client):
            assert await send(client, stream_id, "a") == [0]
            gap, later = await send(client, stream_id, "c", "d", first=2)
            assert isinstance(gap, WriterGapError)
            assert gap.expected == later.expected == 1
            assert await send(client, stream_id, "b", "c", first=1) == [1, 2]
            (unknown,) = await send(client, stream_id, "x", first=1, writer="new")
            assert isinstance(unknown, WriterUnknownError)
            assert await values(cluster, stream_id) == ["a", "b", "c"]

    run(body())


def test_a_batch_after_a_refused_one_of_its_writer_is_a_gap(tmp_path):
    async def body():
        async with one_stream(tmp_path) as (cluster, stream_id, client):
            request, batches = numbered(stream_id, "a", "b", "c")
            batches[1] = b"?" * len(batches[1])
            (answer,) = await client.ask(Opcode.APPEND, request, batches)
            codes = [each.status.code for each in answer.append_responses]
            assert codes == [0, StatusCode.INVALID_REQUEST, StatusCode.WRITER_GAP]
            assert await send(client, stream_id, "b", "c", first=1) == [1, 2]
            assert await values(cluster, stream_id) == ["a", "b", "c"]

    run(body())


def test_a_repeat_that_is_too_old_or_another_batch_is_refused(tmp_path):
    async def body():
        async with one_stream(tmp_path) as (_, stream_id, client):
            kept = limits.WRITER_BATCHES_KEPT
            names = [f"n{at}" for at in range(kept + 1)]
            assert await send(client, stream_id, *names[:kept]) == list(range(kept))
            assert await send(client, stream_id, names[kept], first=kept) == [kept]
            old, known = await send(client, stream_id, *names[:2])
            assert isinstance(old, WriterRepeatError)
            assert known == 1
            request, _ = numbered(stream_id, "x", first=5)
            batch = rows_batch([b"x", b"y"], stream_id)
            info = replace(request.append_requests[0], batch_length=len(batch))
            (answer,) = await client.ask(Opcode.APPEND, AppendRequest(0, (info,)), [batch])
            error = maybe_error(answer.append_responses[0].status)
            assert isinstance(error, InvalidRequestError)
            assert "had 1 record, this one has 2" in error.message

    run(body())


@pytest.mark.parametrize(
    ("writer", "sequence", "txn"),
    [
        ("", 0, None),
        ("a b", 0, None),
        ("x" * (limits.WRITER_ID_LENGTH_MAX + 1), 0, None),
        ("w", -1, None),
        ("w", 2**63 - 1, None),
        (None, 0, None),
        ("w", 0, "txn"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(tmp_path, writer, sequence, txn):
    async def body():
        async with one_stream(tmp_path) as (cluster, stream_id, client):
            batch = rows_batch([b"x"], stream_id)
            where = StreamRange(stream_id=stream_id)
            info = AppendInfo(where, 0, len(batch), stream_id, writer, sequence, txn)
            (answer,) = await client.ask(Opcode.APPEND, AppendRequest(0, (info,)), [batch])
            status = answer.append_responses[0].status
            assert status.code == StatusCode.INVALID_REQUEST
            assert await values(cluster, stream_id) == []

    run(body())


def test_a_repeat_of_what_waits_for_its_sync_is_answered_with_it(tmp_path):
    """Also one that races it on another connection, and one in the same frame as something new."""

    async def body():
        disk = HeldDisk()
        disk.gate.set()
        async with (
            one_stream(tmp_path, disk=disk) as (cluster, stream_id, client),
            RawClient.at(cluster.server.endpoint) as other,
        ):
            assert await send(client, stream_id, "a") == [0]
            disk.gate.clear()
            tasks = [
                asyncio.create_task(send(client, stream_id, "b", first=1)),
                asyncio.create_task(send(other, stream_id, "b", first=1)),
                asyncio.create_task(send(other, stream_id, "b", "c", first=1)),
            ]
            for connection in (client, other):  # each has begun what was sent before
                await connection.call(Opcode.PING)
            assert not any(task.done() for task in tasks)
            disk.gate.set()
            assert await asyncio.gather(*tasks) == [[1], [1], [1, 2]]
            assert await values(cluster, stream_id) == ["a", "b", "c"]

    run(body())


def test_a_repeat_is_answered_though_the_caller_of_the_original_left(tmp_path):
    async def body():
        disk = HeldDisk()
        disk.gate.set()
        async with (
            one_stream(tmp_path, disk=disk) as (cluster, stream_id, client),
            RawClient.at(cluster.server.endpoint) as other,
        ):
            assert await send(client, stream_id, "a") == [0]
            assert (await client.greet(NO_WISHES)).has_deadline
            disk.gate.clear()
            request, batches = numbered(stream_id, "b", first=1)
            with pytest.raises(RequestTimeoutError):
                await client.ask(Opcode.APPEND, replace(request, timeout_ms=1), batches)
            while not cluster.server._committer.pending_bytes:  # it was late before it began
                with pytest.raises(RequestTimeoutError):
                    await client.ask(Opcode.APPEND, replace(request, timeout_ms=100), batches)
            repeat = asyncio.create_task(send(other, stream_id, "b", first=1))
            await other.call(Opcode.PING)
            assert not repeat.done()
            disk.gate.set()
            assert await repeat == [1]
            assert await values(cluster, stream_id) == ["a", "b"]

    run(body())


def test_appended_numbers_stay_known_after_restarts_and_trims(tmp_path):
    async def body():
        async with one_stream(tmp_path) as (cluster, stream_id, client):
            assert await send(client, stream_id, "a", "b") == [0, 1]
            await cluster.client.trim_streams({stream_id: 2})
        for _ in range(2):
            async with (
                core_cluster(tmp_path) as cluster,
                RawClient.at(cluster.server.endpoint) as client,
            ):
                assert await send(client, stream_id, "a", "b") == [0, 1]
                assert await send(client, stream_id, "c", first=2) == [2]

    run(body())


def test_a_deleted_stream_takes_its_writers_along(tmp_path):
    async def body():
        async with one_stream(tmp_path) as (cluster, stream_id, client):
            assert await send(client, stream_id, "a") == [0]
            await cluster.client.delete_streams([stream_id])
            (error,) = await send(client, stream_id, "a")
            assert error.code == StatusCode.NOT_FOUND
            assert len(cluster.server._log.writers) == 0

    run(body())


def test_a_sealed_range_answers_repeats_and_the_next_one_goes_on(tmp_path):
    async def body():
        async with one_stream(tmp_path) as (cluster, stream_id, client):
            assert await send(client, stream_id, "a", range_index=0) == [0]
            await cluster.client.seal_streams([stream_id])
            assert await send(client, stream_id, "a", range_index=0) == [0]
            (sealed,) = await send(client, stream_id, "b", first=1, range_index=0)
            assert sealed.code == StatusCode.RANGE_ALREADY_SEALED
            assert await send(client, stream_id, "a", "b") == [0, 1]
            assert await values(cluster, stream_id) == ["a", "b"]

    run(body())


@asynccontextmanager
async def two_servers(folder):
    """A placement driver and two range servers; the stream is on the first, then on the second."""
    pd = PlacementDriver(PlacementDriverSettings(data_dir=folder / "pd", port=0))
    endpoint = await pd.start()
    servers = [
        RangeServer(
            RangeServerSettings(data_dir=folder / f"rs-{n}", placement_driver=endpoint, port=0)
        )
        for n in range(2)
    ]
    try:
        for server in servers:
            await server.start()
        async with AsyncClient(endpoint) as client:
            yield {server.endpoint: server for server in servers}, client
    finally:
        for server in servers:
            await server.stop()
        await pd.stop()


@pytest.fixture
def taking_turns(monkeypatch):
    """New ranges go to one server after the other."""
    turns = itertools.cycle((1, 2))
    monkeypatch.setattr(Placement, "next_servers", lambda *_: (next(turns),))


async def moved(client, stream_id):
    """Seal a stream so that it goes on at the other server; return where."""
    (*_, before) = (await client.list_ranges([stream_id]))[stream_id]
    opened = (await client.seal_streams([stream_id]))[stream_id]
    assert opened.servers != before.servers
    return opened


def test_the_writers_go_with_the_stream_to_another_server_and_back(tmp_path, taking_turns):
    async def body():
        async with two_servers(tmp_path) as (_, client):
            (stream,) = await client.create_streams([StreamSpec("s")])
            stream_id = stream.stream_id
            writer = Writer()
            for number in range(5):
                item = AppendItem(stream_id, rows_batch([b"%d" % number], stream_id))
                (outcome,) = await client.append([item], writer=writer)
                assert outcome.base_offset == number
                opened = await moved(client, stream_id)
                async with RawClient.at(opened.servers[0]) as raw:
                    options = {"writer": writer.writer_id, "first": number}
                    assert await eventually(raw, stream_id, str(number), **options) == [number]
                    (gap,) = await eventually(
                        raw, stream_id, "x", writer=writer.writer_id, first=number + 2
                    )
                    assert isinstance(gap, WriterGapError)

    run(body())


def without_writers(list_hosted_ranges):
    """The answer of a placement driver that does not know writers."""

    async def listed(stream_ids):
        return [
            dataclasses.replace(each, writers=b"") for each in await list_hosted_ranges(stream_ids)
        ]

    return listed


def test_earlier_writers_are_looked_up_and_never_guessed(tmp_path, taking_turns):
    """A server with a range from elsewhere, and a placement driver that does not know writers."""

    async def body():
        async with two_servers(tmp_path) as (servers, client):
            (stream,) = await client.create_streams([StreamSpec("s")])
            stream_id = stream.stream_id
            writer = Writer()
            item = AppendItem(stream_id, rows_batch([b"a"], stream_id))
            await client.append([item], writer=writer)
            originals = {}
            for server in servers.values():
                originals[server.endpoint] = server._membership.list_hosted_ranges
                server._membership.list_hosted_ranges = without_writers(originals[server.endpoint])
            opened = await moved(client, stream_id)
            async with RawClient.at(opened.servers[0]) as raw:
                options = {"writer": writer.writer_id}
                (refused,) = await send(raw, stream_id, "a", **options)
                assert refused.code == StatusCode.WRITERS_NOT_THERE
                assert refused.retriable
                (refused,) = await send(raw, stream_id, "b", writer="other")
                assert refused.code == StatusCode.WRITERS_NOT_THERE
                plain = AppendItem(stream_id, rows_batch([b"plain"], stream_id))
                await client.append([plain])
                (endpoint,) = opened.servers
                servers[endpoint]._membership.list_hosted_ranges = originals[endpoint]
                assert await eventually(raw, stream_id, "a", **options) == [0]
                assert await eventually(raw, stream_id, "b", first=1, **options) == [2]

    run(body())


def test_writers_learnt_while_a_batch_is_looked_for_do_not_make_it_a_gap(
    tmp_path, taking_turns, monkeypatch
):
    """The log's thread adds earlier writers while the event loop looks for a repeat."""
    look = Writers.maybe_repeat

    def overtaken(self, number, *others):
        found = look(self, number, *others)
        known = encode_writers([WriterState("w", 0, (NumberedBatch(0, 1, 7),))])
        entry = Entry(EntryKind.RANGE_WRITERS, number.stream_id, 1, 1, 1, known)
        self._known.apply(entry, 7)
        return found

    async def body():
        async with two_servers(tmp_path) as (servers, client):
            (stream,) = await client.create_streams([StreamSpec("s")])
            for server in servers.values():
                membership = server._membership
                membership.list_hosted_ranges = without_writers(membership.list_hosted_ranges)
            opened = await moved(client, stream.stream_id)
            async with RawClient.at(opened.servers[0]) as raw:
                monkeypatch.setattr(Writers, "maybe_repeat", overtaken)
                (refused,) = await send(raw, stream.stream_id, "a")
                assert refused.code == StatusCode.WRITERS_NOT_THERE
                assert await send(raw, stream.stream_id, "a") == [0]

    run(body())
