"""GOAWAY with real servers: nothing that is open is lost, and clients go on by themselves."""

import asyncio
import itertools
import threading

from sbp_core import limits
from sbp_core.client import AppendItem, Client, FetchItem, StreamSpec
from sbp_core.errors import StatusCode
from sbp_core.wire.frame import Frame, FrameDecoder, encode_frame
from sbp_core.wire.headers import (
    AppendInfo,
    AppendRequest,
    DescribeStreamsRequest,
    FetchInfo,
    FetchRequest,
    decode_system_error,
    encode_header,
)
from sbp_core.wire.opcodes import Flag, Opcode
from tests.support.client import BlockingDriver
from tests.support.cluster import core_cluster, rows_batch, values_of
from tests.support.disk import HeldDisk
from tests.support.warm import WarmCluster


def check_refusal(frame, call_id):
    assert (frame.call_id, frame.is_system_error) == (call_id, True)
    status = decode_system_error(frame.header).status
    assert status.code == StatusCode.RS_SHUTTING_DOWN
    assert "use another one" in status.message


class Wire:
    """A connection that sends and gets frames, and does not care about GOAWAY."""

    @classmethod
    async def to(cls, endpoint):
        wire = cls()
        host, _, port = endpoint.rpartition(":")
        wire._reader, wire._writer = await asyncio.open_connection(host, int(port))
        wire._decoder = FrameDecoder()
        wire._frames = []
        return wire

    def send(self, opcode, call_id, header=None, payload=()):
        data = b"" if header is None else encode_header(header)
        self._writer.writelines(encode_frame(opcode, Flag.REQUEST, call_id, data, payload))

    async def read(self) -> Frame:
        while not self._frames:
            data = await self._reader.read(65536)
            assert data, "the server closed the connection"
            self._decoder.receive_data(data)
            self._frames += self._decoder.frames()
        return self._frames.pop(0)

    async def read_goaway(self):
        frame = await self.read()
        assert (frame.opcode, frame.call_id, frame.flags) == (Opcode.GOAWAY, 0, Flag.REQUEST)

    async def read_refusal(self, call_id):
        check_refusal(await self.read(), call_id)

    async def read_end(self):
        assert self._frames == []
        assert await self._reader.read() == b""

    async def close(self):
        self._writer.close()
        await self._writer.wait_closed()


def append_of(stream_id, batch):
    info = AppendInfo(batch_length=len(batch), stream_id=stream_id)
    return AppendRequest(append_requests=(info,)), [batch]


def long_poll(stream_id, offset=0):
    info = FetchInfo(fetch_offset=offset, batch_max_bytes=1 << 20, stream_id=stream_id)
    return FetchRequest(max_wait_ms=limits.FETCH_WAIT_MS_MAX, fetch_requests=(info,))


def run(folder, body, **options):
    async def main():
        async with core_cluster(folder, **options) as cluster:
            await asyncio.wait_for(body(cluster), 90)

    asyncio.run(main())


async def create(cluster, *names):
    infos = await cluster.client.create_streams([StreamSpec(name) for name in names])
    return [info.stream_id for info in infos]


def send_idle_goaway(server):
    """Sweep as if every connection had been idle for long enough."""
    listener = server._listener
    idle_seconds, listener._idle_seconds = listener._idle_seconds, -1
    listener.sweep()
    listener._idle_seconds = idle_seconds


def test_a_peer_that_does_not_close_after_goaway_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "GOAWAY_GRACE_MS", 50)

    async def body(cluster):
        for server in (cluster.server, cluster.pd):
            wire = await Wire.to(server.endpoint)
            wire.send(Opcode.PING, 1)
            assert (await wire.read()).call_id == 1
            send_idle_goaway(server)
            await wire.read_goaway()
            async with asyncio.timeout(30):
                end = asyncio.create_task(wire.read_end())
                while not end.done():
                    send_idle_goaway(server)
                    await asyncio.sleep(0.01)
            await end
            await wire.close()

    run(tmp_path, body)


def test_a_client_may_send_goaway_and_gets_its_answers_before_the_end(tmp_path):
    disk = HeldDisk()
    disk.gate.set()

    async def body(cluster):
        (stream_id,) = await create(cluster, "s")
        await cluster.client.append([AppendItem(stream_id, rows_batch([b"0"]))])
        disk.gate.clear()
        wire = await Wire.to(cluster.server.endpoint)
        wire.send(Opcode.FETCH, 1, long_poll(stream_id, 1))
        wire.send(Opcode.APPEND, 2, *append_of(stream_id, rows_batch([b"1"])))
        wire.send(Opcode.GOAWAY, 0)
        wire.send(Opcode.PING, 3)
        await wire.read_refusal(3)
        disk.gate.set()
        answers = {frame.call_id: frame for frame in [await wire.read(), await wire.read()]}
        assert {(each.opcode, each.flags) for each in answers.values()} == {
            (Opcode.FETCH, 3),
            (Opcode.APPEND, 3),
        }
        assert values_of(answers[1].payload) == [(1, b"1")]
        await wire.read_end()
        await wire.close()

        wire = await Wire.to(cluster.pd.endpoint)
        wire.send(Opcode.DESCRIBE_STREAMS, 1, DescribeStreamsRequest(all_streams=True))
        wire.send(Opcode.GOAWAY, 0)
        assert (await wire.read()).call_id == 1
        await wire.read_end()
        await wire.close()

        wire = await Wire.to(cluster.pd.endpoint)
        wire.send(Opcode.GOAWAY, 0)
        await wire.read_end()
        await wire.close()

    run(tmp_path, body, disk=disk)


# Clients go on by themselves.


class Loop:
    """A writer and a reader of one stream, each with a client of its own, until stopped."""

    def __init__(self, endpoint, stream_id):
        self.written = []
        self.read = []
        self._stream_id = stream_id
        self._clients = [BlockingDriver(endpoint), BlockingDriver(endpoint)]
        self._errors = []
        self._is_over = threading.Event()
        self._progress = threading.Condition()
        work = zip((self._write, self._read), self._clients, strict=True)
        self._threads = [threading.Thread(target=self._guard, args=each) for each in work]
        for thread in self._threads:
            thread.start()

    def wait_for_progress(self):
        """Until some more was written, and all that was written by now was read."""
        target = len(self.written) + 20
        with self._progress:
            moved = self._progress.wait_for(
                lambda: self._errors or min(len(self.written), len(self.read)) > target, 60
            )
        assert not self._errors
        assert moved, "no progress"

    def end(self):
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)
        for client in self._clients:
            client.close()
        assert self._errors == []
        assert [offset for offset, _ in self.written] == list(range(len(self.written)))
        assert self.read == self.written[: len(self.read)]

    def _guard(self, work, driver):
        try:
            work(driver)
        except BaseException as error:
            self._errors.append(error)
        with self._progress:
            self._progress.notify_all()

    def _write(self, driver):
        for number in itertools.count():
            value = b"%d" % number
            (outcome,) = driver.do("append", [AppendItem(self._stream_id, rows_batch([value]))])
            with self._progress:
                self.written.append((outcome.base_offset, value))
                self._progress.notify_all()
            if self._is_over.is_set():
                return

    def _read(self, driver):
        while not self._is_over.is_set():
            item = FetchItem(self._stream_id, len(self.read), None, 1 << 20)
            (outcome,) = driver.fetch([item], max_wait_ms=200)
            if outcome.error is not None:
                raise outcome.error
            with self._progress:
                self.read += values_of(outcome.payload)
                self._progress.notify_all()


def test_clients_go_on_after_idle_goaways(tmp_path):
    async def body(cluster):
        (stream_id,) = await create(cluster, "s")
        loop = await asyncio.to_thread(Loop, cluster.pd.endpoint, stream_id)
        try:
            for _ in range(5):
                await asyncio.to_thread(loop.wait_for_progress)
                peers = list(cluster.server._listener._peers)
                assert peers
                send_idle_goaway(cluster.server)
                send_idle_goaway(cluster.pd)
        finally:
            await asyncio.to_thread(loop.end)

    run(tmp_path, body)


def test_clients_go_on_after_restarts_of_the_servers_at_the_same_ports(tmp_path):
    with WarmCluster(tmp_path) as cluster:
        with Client(cluster.endpoint) as client:
            (info,) = client.create_streams([StreamSpec("s")])
        loop = Loop(cluster.endpoint, info.stream_id)
        try:
            for _ in range(2):
                loop.wait_for_progress()
                cluster.restart()
            loop.wait_for_progress()
        finally:
            loop.end()
    log = cluster.log_path.read_text()
    assert "Traceback" not in log
    assert "ERROR" not in log
