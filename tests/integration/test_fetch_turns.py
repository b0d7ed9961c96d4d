"""FETCH of many clients: none waits for a peer that does not read, nor the tail for a backlog."""

import asyncio
import socket
import threading
from contextlib import AsyncExitStack, asynccontextmanager

from sbp_core import limits
from sbp_core.client import AppendItem, StreamSpec
from sbp_core.log.disk import OsDisk
from sbp_core.rangeserver.fetching.read_scheduler import ReadClass
from sbp_core.wire.frame import encode_frame
from sbp_core.wire.headers import (
    FetchInfo,
    FetchRequest,
    FetchResponse,
    decode_header,
    encode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error
from tests.support.cluster import core_cluster, rows_batch, values_of
from tests.support.wire import RawClient

BIG = 1 << 20
TAIL, CATCH_UP = ReadClass("", True), ReadClass("", False)


class GatedDisk(OsDisk):
    """Reads of opened segments, which nothing caches, wait for `gate`.

    `begun` and `read_lengths` record the requests.
    """

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.begun = []
        self.read_lengths = []

    def open(self, path, *, is_writable):
        file = super().open(path, is_writable=is_writable)
        if not is_writable:
            real = file.pread

            def pread(length, position):
                self.begun.append(length)
                assert self.gate.wait(60)
                self.read_lengths.append(length)
                return real(length, position)

            file.pread = pread
            file.maybe_pread_cached = lambda length, position: None
        return file


def run(test, folder, bounds=None, **options):
    """Run a test of a server that keeps no body in memory."""
    bounds = {"recent_bodies_bytes_max": 0} | (bounds or {})

    async def body():
        async with core_cluster(folder, bounds=bounds, **options) as cluster:
            await asyncio.wait_for(test(cluster), 60)

    asyncio.run(body())


async def filled_stream(cluster, name, batches, value):
    (stream,) = await cluster.client.create_streams([StreamSpec(name)])
    for _ in range(batches):
        await cluster.client.append([AppendItem(stream.stream_id, rows_batch([value]))])
    return stream.stream_id


def fetch(stream_id, *offsets):
    """Ask for the batches at these offsets, each in an answer of its own."""
    return FetchRequest(
        fetch_requests=tuple(
            FetchInfo(
                request_index=index, fetch_offset=offset, batch_max_bytes=1, stream_id=stream_id
            )
            for index, offset in enumerate(offsets)
        )
    )


def queue_of(cluster):
    guarded = cluster.server._listener._dispatcher._handlers[Opcode.FETCH]
    _, handler = guarded.args
    return handler.reads._queue


def waiting_count(cluster):
    return sum(len(backlog.jobs) for backlog in queue_of(cluster)._classes.values())


def write_buffers(cluster):
    peers = cluster.server._listener._peers
    return [peer._outgoing._unsent_bytes() for peer in peers]


async def until(is_so):
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@asynccontextmanager
async def stuck_reader(cluster, request, calls):
    """A peer that sends a request in all `calls` at once and reads nothing."""
    host, port = cluster.server.endpoint.split(":")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, (host, int(port)))
        header = encode_header(request)
        for call_id in range(1, calls + 1):
            frame = b"".join(encode_frame(Opcode.FETCH, 0, call_id, header))
            await loop.sock_sendall(connection, frame)
        yield


def check_values(frames, expected):
    results = [
        result
        for frame in frames
        for result in decode_header(FetchResponse, frame.header).fetch_responses
    ]
    assert all(maybe_error(result.status) is None for result in results)
    assert [value for frame in frames for _, value in values_of(frame.payload)] == expected


def test_more_stuck_readers_than_reads_at_a_time_do_not_stop_a_healthy_one(tmp_path):
    async def body(cluster):
        value = bytes(BIG)
        stream_id = await filled_stream(cluster, "big", 16, value)
        request = fetch(stream_id, *range(16))
        stuck_count = limits.READS_AT_WORK_MAX + 1
        async with AsyncExitStack() as stack:
            for _ in range(stuck_count):
                await stack.enter_async_context(stuck_reader(cluster, request, calls=8))
            high = limits.WRITE_BUFFER_HIGH_BYTES
            await until(lambda: sum(held > high for held in write_buffers(cluster)) == stuck_count)
            async with RawClient.at(cluster.server.endpoint) as healthy:
                for _ in range(3):
                    check_values(await healthy.call(Opcode.FETCH, request), [value] * 16)
            frame_bytes = len(rows_batch([value])) + limits.KIB
            bound = high + limits.RESPONSES_RESERVED_MAX * frame_bytes
            assert max(write_buffers(cluster)) <= bound
            assert waiting_count(cluster) == 0

    run(body, tmp_path)


def test_a_read_of_the_tail_does_not_wait_for_a_backlog(tmp_path):
    disk = GatedDisk()

    async def body(cluster):
        old = await filled_stream(cluster, "old", 8, bytes(BIG))
        new = await filled_stream(cluster, "new", 1, b"fresh")
        disk.gate.clear()
        async with AsyncExitStack() as stack:
            endpoint = cluster.server.endpoint
            clients = [await stack.enter_async_context(RawClient.at(endpoint)) for _ in range(4)]
            backlog = [
                asyncio.create_task(client.call(Opcode.FETCH, fetch(old, *range(8))))
                for client in clients[:3]
                for _ in range(4)
            ]
            at_most = 3 * limits.RESPONSES_RESERVED_MAX
            await until(lambda: waiting_count(cluster) == at_most - 1)
            assert set(queue_of(cluster)._classes) == {CATCH_UP}
            tail = asyncio.create_task(clients[3].call(Opcode.FETCH, fetch(new, 0)))
            await until(lambda: TAIL in queue_of(cluster)._classes)
            disk.gate.set()
            check_values(await tail, [b"fresh"])
            assert min(disk.read_lengths) in disk.read_lengths[:3]
            for call in backlog:
                check_values(await call, [bytes(BIG)] * 8)

    run(body, tmp_path, {"reads_at_work_max": 1, "tail_window_bytes": 64 * limits.KIB}, disk=disk)
