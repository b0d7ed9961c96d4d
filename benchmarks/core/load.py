"""Calls over raw sockets, as many as the machine makes: frames are encoded once, answers counted.

It runs in a process of its own. Each connection keeps a fixed number of appends in flight:
each answer, a refusal too, is followed by the same append at once, which no polite client does.
A Kafka broker gets the same load, in its own protocol.
"""

from __future__ import annotations

import multiprocessing
import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection as Pipe
from typing import Final

from benchmarks.peer import produce
from sbp_core import limits
from sbp_core.errors import StatusCode
from sbp_core.wire.checksum import Buffer, crc32
from sbp_core.wire.frame import Frame, FrameDecoder, encode_frame
from sbp_core.wire.headers import (
    AppendInfo,
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    decode_header,
    encode_header,
)
from sbp_core.wire.opcodes import Flag, Opcode

_TIMEOUT_S: Final = limits.REQUEST_TIMEOUT_MS / 1000
"""A longer answer is too late: our clients would have timed out."""
_DRAIN_S: Final = 2 * _TIMEOUT_S
_CONNECT_PAUSE_S: Final = 0.1
_BUFFERS_PER_SEND: Final = 64
_READ_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Load:
    """Connections to `port`, each with `in_flight` appends of `batch` to one of the streams.

    Without a batch they are PINGs. With a `topic` the port is that of a Kafka broker, which gets
    `batch` as a record; it answers one call at a time on a connection.
    """

    port: int
    stream_ids: tuple[int, ...]
    batch: bytes | None
    connection_count: int
    in_flight: int
    seconds: float
    warm_up_seconds: float = 1.0
    topic: str = ""


@dataclass(slots=True)
class Answers:
    """The results of a load; latencies of acknowledged calls in seconds.

    `asked` and `late` are of the whole run, with its warm-up and what was answered after its end.
    """

    asked: int = 0
    late: int = 0
    acknowledged: int = 0
    refused: int = 0
    failed: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        """Acknowledged calls in a second."""
        return self.acknowledged / self.seconds

    def latency_ms(self, percent: float) -> float:
        """Return a percentile of the latencies; 0 without any."""
        ordered = sorted(self.latencies) or [0.0]
        return 1000 * ordered[int((len(ordered) - 1) * percent / 100)]


class Generator:
    """A load that runs in a process of its own."""

    def __init__(self, load: Load) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, load), daemon=True)
        self._process.start()
        theirs.close()

    def wait_connected(self) -> None:
        """Wait until all connections did a HEARTBEAT and a call of the load."""
        self._pipe.recv()

    def start(self) -> None:
        """Let it begin."""
        self._pipe.send(None)

    def finish(self) -> Answers:
        """Wait for the end."""
        answers: Answers = self._pipe.recv()
        self._process.join()
        return answers


def run(load: Load) -> Answers:
    """Run a load from start to end."""
    generator = Generator(load)
    generator.wait_connected()
    generator.start()
    return generator.finish()


def append_heads(stream_id: int, batch: bytes, call_ids: Sequence[int]) -> list[bytes]:
    """Return what is different in frames that append a batch: all before the payload."""
    info = AppendInfo(stream_id=stream_id, request_index=0, batch_length=len(batch))
    header = encode_header(AppendRequest(timeout_ms=0, append_requests=(info,)))
    head, *_ = encode_frame(Opcode.APPEND, Flag.REQUEST, 0, header, [batch])
    return [_numbered(head, call_id) for call_id in call_ids]


def _numbered(head: Buffer, call_id: int) -> bytes:
    return bytes(head[:8]) + call_id.to_bytes(4, "big") + bytes(head[12:])


class _Sender:
    """One connection; call ids are the numbers of its calls in flight."""

    def __init__(self, load: Load, number: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", load.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._is_kafka = bool(load.topic)
        call_ids = range(load.in_flight)
        head: Buffer
        self._tail: Buffer
        if load.topic:
            assert load.batch is not None
            head, self._tail = produce.encode_append(load.topic, load.batch)
            self.heads = [_numbered(head, call_id) for call_id in call_ids]
        elif load.batch is None:
            head, self._tail = encode_frame(Opcode.PING, Flag.REQUEST, 0, b"")
            self.heads = [_numbered(head, call_id) for call_id in call_ids]
        else:
            stream_id = load.stream_ids[number % len(load.stream_ids)]
            self.heads = append_heads(stream_id, load.batch, call_ids)
            self._tail = load.batch + crc32([load.batch]).to_bytes(4, "big")
        self.sent_at = [0.0] * load.in_flight
        self.open_count = 0
        self.outgoing: deque[Buffer] = deque()
        self.incoming = b""
        self._id_at = 4 if load.topic else 8
        """Where an answer has the number of its call."""
        if not load.topic:
            self.greet()

    def greet(self) -> None:
        """Do a HEARTBEAT; a server closes connections that stay silent."""
        header = encode_header(HeartbeatRequest(client_id="load"))
        self._ask(b"".join(encode_frame(Opcode.HEARTBEAT, Flag.REQUEST, 0, header)))

    def call_once(self) -> None:
        """Do one call, and be ready for more at a time."""
        self._ask(b"".join((self.heads[0], self._tail)))
        self.socket.setblocking(False)

    def _ask(self, encoded: bytes) -> None:
        self.socket.sendall(encoded)
        if self._is_kafka:
            produce.receive_answer(self.socket)
            return
        decoder = FrameDecoder()
        while not (frames := list(decoder.frames())):
            received = self.socket.recv(_READ_BYTES)
            if not received:
                raise ConnectionResetError
            decoder.receive_data(received)
        if frames[0].opcode == Opcode.GOAWAY:
            raise ConnectionResetError

    def call(self, call_id: int, now: float) -> None:
        """Queue a call."""
        self.sent_at[call_id] = now
        self.open_count += 1
        self.outgoing.append(self.heads[call_id])
        self.outgoing.append(self._tail)

    def send(self) -> None:
        """Send what the socket takes."""
        while self.outgoing:
            try:
                sent = self.socket.sendmsg(list(islice(self.outgoing, _BUFFERS_PER_SEND)))
            except BlockingIOError:
                return
            while sent and sent >= len(self.outgoing[0]):
                sent -= len(self.outgoing.popleft())
            if sent:
                self.outgoing[0] = memoryview(self.outgoing[0])[sent:]

    def receive(self) -> list[tuple[int, int, bytes]]:
        """Return call id, length and bytes of what was answered."""
        try:
            encoded = self.incoming + self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        found = []
        at = 0
        while at + 4 <= len(encoded):
            end = at + 4 + int.from_bytes(encoded[at : at + 4], "big")
            if end > len(encoded):
                break
            id_at = at + self._id_at
            call_id = int.from_bytes(encoded[id_at : id_at + 4], "big")
            found.append((call_id, end - at, encoded[at:end]))
            at = end
        self.incoming = encoded[at:]
        return found


def _connected(load: Load, number: int) -> _Sender:
    """Return a connection that the server accepted; a full one accepts it a little later."""
    until = time.perf_counter() + _TIMEOUT_S
    while True:
        try:
            return _Sender(load, number)
        except ConnectionResetError:
            if time.perf_counter() > until:
                raise
            time.sleep(_CONNECT_PAUSE_S)


class _Judge:
    """Distinguishes acknowledged from refused calls: answers of one length have the same result."""

    def __init__(self, *, is_kafka: bool) -> None:
        self._codes: dict[int, int] = {}
        self._is_kafka = is_kafka

    def code(self, length: int, encoded: bytes) -> int:
        """Return the status code of an answer."""
        if self._is_kafka:
            return int(produce.append_code(encoded) and StatusCode.UNKNOWN)
        if length not in self._codes:
            decoder = FrameDecoder()
            decoder.receive_data(encoded)
            (frame,) = decoder.frames()
            self._codes[length] = _code_of(frame)
        return self._codes[length]


def _code_of(frame: Frame) -> int:
    if frame.is_system_error:
        return int(StatusCode.UNKNOWN)
    if frame.opcode == Opcode.PING:
        return int(StatusCode.NONE)
    (result,) = decode_header(AppendResponse, frame.header).append_responses
    return result.status.code if result.status else 0


def _run(pipe: Pipe, load: Load) -> None:
    senders = [_connected(load, number) for number in range(load.connection_count)]
    for sender in senders:
        sender.call_once()
    pipe.send(None)
    pipe.recv()
    pipe.send(_drive(senders, load))
    for sender in senders:
        sender.socket.close()


def _drive(senders: Sequence[_Sender], load: Load) -> Answers:
    selector = selectors.DefaultSelector()
    started = time.perf_counter()
    for sender in senders:
        for call_id in range(load.in_flight):
            sender.call(call_id, started)
        sender.send()
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if sender.outgoing else 0)
        selector.register(sender.socket, mask, sender)
    judge, answers = _Judge(is_kafka=bool(load.topic)), Answers(seconds=load.seconds)
    counted_from = started + load.warm_up_seconds
    until = counted_from + load.seconds
    while (now := time.perf_counter()) < until + _DRAIN_S:
        if now > until and not any(sender.open_count for sender in senders):
            break
        for key, _ in selector.select(0.1):
            sender = key.data
            _count(answers, sender, judge, counted_from=counted_from, until=until)
            sender.send()
            mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if sender.outgoing else 0)
            if mask != key.events:
                selector.modify(sender.socket, mask, sender)
    unanswered = sum(sender.open_count for sender in senders)
    answers.asked += unanswered
    answers.late += unanswered
    return answers


def _count(
    answers: Answers, sender: _Sender, judge: _Judge, *, counted_from: float, until: float
) -> None:
    """Count what was answered, and send it again while there is time."""
    now = time.perf_counter()
    for call_id, length, encoded in sender.receive():
        code = judge.code(length, encoded)
        latency = now - sender.sent_at[call_id]
        sender.open_count -= 1
        answers.asked += 1
        if now < until:
            sender.call(call_id, now)
        answers.late += latency > _TIMEOUT_S
        if not counted_from <= now < until:
            continue
        if code == StatusCode.NONE:
            answers.acknowledged += 1
            answers.latencies.append(latency)
        elif code == StatusCode.TOO_MANY_REQUESTS:
            answers.refused += 1
        else:
            answers.failed += 1
