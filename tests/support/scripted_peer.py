"""A small SBP server with real sockets and frames, whose answers a test scripts."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from sbp_core.client import FetchItem, RetryPolicy
from sbp_core.errors import SbpError, StatusCode
from sbp_core.session.connection import Connection
from sbp_core.session.states import ConnectionBroken, RequestReceived, ResponseReceived
from sbp_core.wire.checksum import Buffer
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import (
    REQUEST_TABLES,
    AppendResponse,
    AppendResult,
    FetchResponse,
    FetchResult,
    HeartbeatResponse,
    ListRangesResponse,
    ListRangesResult,
    RangeCriteria,
    RangeServer,
    ReplicaServer,
    Status,
    StreamRange,
    decode_header,
    encode_header,
)
from sbp_core.wire.opcodes import Opcode


class Exchange:
    """One request that the peer got, and the means to answer it."""

    def __init__(self, link: Link, frame: Frame) -> None:
        self.link = link
        self.frame = frame
        self.opcode = Opcode(frame.opcode)

    @cached_property
    def header(self) -> Any:
        """The request's table."""
        table = REQUEST_TABLES.get(self.opcode)
        return decode_header(table, self.frame.header) if table else None

    def answer(
        self, header: object, payload: Sequence[Buffer] = (), *, is_end: bool = True
    ) -> None:
        with self.link.lock:
            data = header if isinstance(header, bytes) else b""
            if header is not None and not data:
                data = encode_header(header)
            self.link.send(
                self.link.session.send_response(self.frame, data, payload, is_end=is_end)
            )

    def echo(self) -> None:
        with self.link.lock:
            self.link.send(
                self.link.session.send_response(self.frame, self.frame.header, [self.frame.payload])
            )

    def fail(self, error: SbpError) -> None:
        with self.link.lock:
            self.link.send(self.link.session.send_system_error(self.frame, error))


Handler = Callable[[Exchange], None]


class Link:
    """One accepted connection."""

    def __init__(self, peer: ScriptedPeer, accepted: socket.socket) -> None:
        self.peer = peer
        self.socket = accepted
        self.session = Connection()
        self.lock = threading.Lock()
        self.responses: list[Frame] = []
        self.has_response = threading.Event()
        self.is_over = threading.Event()

    def send(self, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        step = 1 if self.peer.dribbles else len(data) or 1
        with contextlib.suppress(OSError):
            for begin in range(0, len(data), step):
                self.socket.sendall(data[begin : begin + step])

    def ask(self, opcode: Opcode, header: bytes = b"", payload: Sequence[Buffer] = ()) -> None:
        """Send the client a request; its answer appears in `responses`."""
        with self.lock:
            self.send(self.session.start_call(opcode, header, payload)[1])

    def goaway(self) -> None:
        with self.lock:
            self.send(self.session.send_goaway())

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Break the connection the hard way: a TCP reset."""
        linger = struct.pack("ii", 1, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.socket.close()

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.socket.recv(65536):
                self.session.decoder.receive_data(data)
                for event in self.session.events():
                    self._on_event(event)
        self.socket.close()
        self.is_over.set()

    def _on_event(self, event: object) -> None:
        if isinstance(event, RequestReceived):
            self.peer.on_request(Exchange(self, event.frame))
        elif isinstance(event, ResponseReceived):
            self.responses.append(event.frame)
            self.has_response.set()
        elif isinstance(event, ConnectionBroken):
            self.peer.faults.append(event.error)


class ScriptedPeer:
    """Listens on a port of its own; answers each opcode with its scripted handlers in turn.

    The last handler of a script goes on serving. HEARTBEAT and PING are answered by themselves.
    """

    def __init__(self) -> None:
        self._is_closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.dribbles = False
        self.requests: list[Exchange] = []
        self.links: list[Link] = []
        self.faults: list[object] = []
        self._scripts: dict[Opcode, list[Handler]] = {
            Opcode.HEARTBEAT: [lambda exchange: exchange.answer(HeartbeatResponse())],
            Opcode.PING: [lambda exchange: exchange.echo()],
        }
        threading.Thread(target=self._accept, daemon=True).start()

    def script(self, opcode: Opcode, *handlers: Handler) -> None:
        self._scripts[opcode] = list(handlers)

    def seen(self, opcode: Opcode) -> list[Exchange]:
        return [each for each in self.requests if each.opcode is opcode]

    def on_request(self, exchange: Exchange) -> None:
        self.requests.append(exchange)
        script = self._scripts.get(exchange.opcode)
        if not script:
            self.faults.append(f"nothing scripted for {exchange.opcode!r}")
            exchange.link.close()
            return
        handler = script.pop(0) if len(script) > 1 else script[0]
        handler(exchange)

    def close(self) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):  # closed already
            self._listener.shutdown(socket.SHUT_RDWR)  # or a thread in accept() keeps it open
        self._listener.close()
        for link in self.links:
            link.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                link = Link(self, self._listener.accept()[0])
                self.links.append(link)
                if self._is_closed:  # it may have looked for links before
                    link.close()
                threading.Thread(target=link.run, daemon=True).start()


def reset(exchange: Exchange) -> None:
    """A handler: break the connection instead of answering."""
    exchange.link.reset()


def silent(exchange: Exchange) -> None:
    """A handler: never answer."""


def status(code: StatusCode, message: str = "scripted", detail: bytes = b"") -> Status:
    return Status(code=code, message=message, detail=detail)


def placed(
    stream_id: int,
    index: int,
    start: int,
    end: int,
    endpoint: str,
    next_offset: int = 0,
    secondaries: Sequence[str] = (),
) -> StreamRange:
    """A range whose primary is at `endpoint`; `end` -1 is open."""
    servers = tuple(
        ReplicaServer(RangeServer(number, each), is_primary=each == endpoint)
        for number, each in enumerate((*secondaries, endpoint), 1)
    )
    return StreamRange(stream_id, index, start, end, next_offset, servers)


def ranges(*pieces: StreamRange, revision: int = -1) -> Handler:
    """A handler: answer LIST_RANGES from these ranges; other streams are not found."""

    def handle(exchange: Exchange) -> None:
        if revision >= 0 and exchange.header.since_revision == revision:
            exchange.answer(ListRangesResponse(revision=revision))
            return
        results = []
        for owner in exchange.header.range_owners:
            found = tuple(piece for piece in pieces if piece.stream_id == owner.stream_id)
            results.append(
                ListRangesResult(
                    range_owner=RangeCriteria(stream_id=owner.stream_id),
                    ranges=found,
                    status=Status() if found else status(StatusCode.NOT_FOUND),
                    stream_id=owner.stream_id,
                )
            )
        exchange.answer(ListRangesResponse(list_responses=tuple(results), revision=revision))

    return handle


NO_RETRY = RetryPolicy(budget_ms=0)


def appended(exchange: Exchange, **failures: StatusCode) -> None:
    """Answer an APPEND: item n fails if `failures` has "n<index>", in reverse order otherwise."""
    results = []
    for item in exchange.header.append_requests:
        code = failures.get(f"n{item.request_index}", StatusCode.NONE)
        results.append(
            AppendResult(
                item.stream_id, item.request_index, 100 + item.request_index, 7, Status(code)
            )
        )
    exchange.answer(AppendResponse(append_responses=tuple(reversed(results))))


def append_handler(**failures: StatusCode) -> Handler:
    return lambda exchange: appended(exchange, **failures)


def fetched(exchange: Exchange, data: bytes = b"data", next_offset: int = 5) -> None:
    results = tuple(
        FetchResult(item.stream_id, item.request_index, 1, Status(), len(data), next_offset)
        for item in exchange.header.fetch_requests
    )
    exchange.answer(FetchResponse(fetch_responses=results), [data] * len(results))


def fetch_empty(exchange: Exchange) -> None:
    results = tuple(
        FetchResult(item.stream_id, item.request_index, 0, Status(), 0, item.fetch_offset)
        for item in exchange.header.fetch_requests
    )
    exchange.answer(FetchResponse(fetch_responses=results))


def fetch_refused(code: StatusCode, detail: bytes = b"") -> Handler:
    def handle(exchange: Exchange) -> None:
        results = tuple(
            FetchResult(item.stream_id, item.request_index, status=status(code, detail=detail))
            for item in exchange.header.fetch_requests
        )
        exchange.answer(FetchResponse(fetch_responses=results))

    return handle


def item(stream_id: int, offset: int = 0, end: int | None = None) -> FetchItem:
    return FetchItem(stream_id, offset, end, 1 << 20)


def batches(exchange: Exchange) -> list[bytes]:
    """The payloads of an APPEND frame, cut as its header says."""
    cut, position = [], 0
    for info in exchange.header.append_requests:
        cut.append(bytes(exchange.frame.payload[position : position + info.batch_length]))
        position += info.batch_length
    assert position == len(exchange.frame.payload)
    return cut
