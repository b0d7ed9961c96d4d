"""FETCH over a blocking socket: the cost of a reader that does the least it can.

It keeps a few requests in flight, and checks the checksum of every answer.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from itertools import islice
from types import TracebackType
from typing import Final, Self

from sbp_core.sockets import Receiving
from sbp_core.wire.frame import FrameDecoder, encode_frame
from sbp_core.wire.headers import (
    FetchInfo,
    FetchRequest,
    FetchResponse,
    decode_header,
    encode_header,
)
from sbp_core.wire.opcodes import Flag, Opcode

_PATIENCE_SECONDS: Final = 60
"""With a timeout the socket does not block: see `Receiving`."""


class RawReader:
    """One connection to a range server."""

    def __init__(self, endpoint: str) -> None:
        host, port = endpoint.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=_PATIENCE_SECONDS)
        self._receiving = Receiving(self._socket)
        self._decoder = FrameDecoder()

    def read_seconds(
        self, stream_id: int, offsets: Sequence[int], *, max_bytes: int, in_flight: int
    ) -> tuple[float, int]:
        """Fetch `max_bytes` from each of `offsets`; return how long that took, and the bytes."""
        requests = iter(
            b"".join(_request(call_id, stream_id, offset, max_bytes))
            for call_id, offset in enumerate(offsets)
        )
        byte_count = 0
        started = time.perf_counter()
        for request in islice(requests, in_flight):
            self._socket.sendall(request)
        for _ in offsets:
            byte_count += self._receive()
            self._socket.sendall(next(requests, b""))
        return time.perf_counter() - started, byte_count

    def _receive(self) -> int:
        """Return the bytes of the next answer."""
        while True:
            for frame in self._decoder.frames():
                (result,) = decode_header(FetchResponse, frame.header).fetch_responses
                assert result.batch_length == len(frame.payload) > 0, result
                return len(frame.payload)
            self._receiving.expect(self._decoder.missing_bytes)
            self._decoder.buffer_updated(self._socket.recv_into(self._decoder.get_buffer()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()


def _request(call_id: int, stream_id: int, offset: int, max_bytes: int) -> list[bytes]:
    info = FetchInfo(stream_id=stream_id, fetch_offset=offset, batch_max_bytes=max_bytes)
    header = encode_header(FetchRequest(max_wait_ms=1000, fetch_requests=(info,)))
    return [bytes(part) for part in encode_frame(Opcode.FETCH, Flag.REQUEST, call_id, header)]
