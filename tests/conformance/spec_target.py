"""The SBP servers under test, and frames made without the project's own codec."""

from __future__ import annotations

import asyncio
import socket
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from sbp_core.errors import InvalidRequestError, PermissionDeniedError
from sbp_core.records.envelope import encode_envelope
from sbp_core.wire.checksum import Buffer
from sbp_core.wire.headers import (
    AppendInfo,
    AppendRequest,
    CreateStreamsRequest,
    DeleteStreamsRequest,
    FetchInfo,
    FetchRequest,
    ListRangesRequest,
    RangeCriteria,
    RangeServer,
    Stream,
    StreamRange,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import is_success
from tests.support.cluster import Known
from tests.support.wire import RawClient

TIMEOUT_SECONDS = 60
RETENTION_MS = 86_400_000


@dataclass(frozen=True)
class Placed:
    """A stream, its first range and the server that hosts it."""

    stream_id: int
    stream_range: StreamRange
    server: RangeServer


DATA_DIRS: list[Path] = []
"""Where range servers under test keep their data, as far as that is known: their secrets, too."""


class SpecClient(RawClient):
    """Asks as the placement driver does where a range server wants that, if its secret is known."""

    async def ask(
        self, opcode: Opcode, header: object | bytes = b"", payload: Sequence[Buffer] = ()
    ) -> list[Any]:
        """Return the decoded headers that answer a request; see RawClient."""
        try:
            return await super().ask(opcode, header, payload)
        except PermissionDeniedError:
            if not await self._prove():
                pytest.skip("the range server wants a proof; set SBP_CONFORMANCE_DATA_DIR")
        return await super().ask(opcode, header, payload)

    async def _prove(self) -> bool:
        for path in (found for each in DATA_DIRS for found in each.rglob("identity.json")):
            try:
                await Known.of(path.parent).prove(self)
            except (PermissionDeniedError, InvalidRequestError):
                continue
            return True
        return False


class Target:
    """A placement driver, and by it its range servers."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def run(self, body: Callable[[Target], Awaitable[None]]) -> None:
        """Run a test; it fails if it does not end."""
        asyncio.run(asyncio.wait_for(body(self), TIMEOUT_SECONDS))

    def pd(self) -> SpecClient:
        """A connection to the server, which need not be the placement driver."""
        return SpecClient.at(self.endpoint)

    @asynccontextmanager
    async def streams(self, count: int = 1) -> AsyncIterator[list[Placed]]:
        """New streams, deleted at the end."""
        new = tuple(Stream(replica_nums=1, retention_period_ms=RETENTION_MS) for _ in range(count))
        async with self.pd() as client:
            answers = await client.ask(Opcode.CREATE_STREAMS, CreateStreamsRequest(streams=new))
            created = [result for answer in answers for result in answer.create_responses]
            stream_ids = [result.stream.stream_id for result in created]
            assert all(is_success(result.status) for result in created)
            try:
                yield [await self.placed(client, each) for each in stream_ids]
            finally:
                await client.ask(
                    Opcode.DELETE_STREAMS,
                    DeleteStreamsRequest(streams=tuple(Stream(stream_id=i) for i in stream_ids)),
                )

    async def placed(self, client: RawClient, stream_id: int) -> Placed:
        """Where a stream's last range is."""
        (ranges,) = await list_ranges(client, RangeCriteria(stream_id=stream_id))
        last = ranges[-1]
        primary = next(each for each in last.servers if each.is_primary)
        return Placed(stream_id, last, primary.server)


async def list_ranges(client: RawClient, *owners: RangeCriteria) -> list[list[StreamRange]]:
    """The ranges of each owner; several results of one owner in a row are joined."""
    answers = await client.ask(Opcode.LIST_RANGES, ListRangesRequest(range_owners=owners))
    ranges: list[list[StreamRange]] = []
    last_owner = None
    for result in (result for answer in answers for result in answer.list_responses):
        assert is_success(answer_status(result)), result
        if result.range_owner != last_owner:
            ranges.append([])
        last_owner = result.range_owner
        ranges[-1] += result.ranges
    return ranges


def answer_status(result: object) -> object:
    """The status of an answer or an item."""
    return getattr(result, "status", None)


def batch(record_count: int = 1, body: bytes = b"body", stream_id: int = 0) -> bytes:
    """A record batch whose body means nothing to a server, but has a byte for each record."""
    return encode_envelope(
        [body.ljust(record_count, b".")],
        stream_id=stream_id,
        record_count=record_count,
        base_timestamp_ms=1_700_000_000_000,
        encoding="opaque",
    )


def append_request(
    *batches: tuple[Placed, bytes], indexes: Sequence[int] = ()
) -> tuple[AppendRequest, list[bytes]]:
    """A header that appends batches, and its payload."""
    infos = tuple(
        AppendInfo(
            stream_range=StreamRange(
                stream_id=placed.stream_id,
                range_index=placed.stream_range.range_index,
                end_offset=-1,
            ),
            request_index=index,
            batch_length=len(data),
            stream_id=placed.stream_id,
        )
        for index, (placed, data) in zip(indexes or range(len(batches)), batches, strict=True)
    )
    return AppendRequest(timeout_ms=10_000, append_requests=infos), [each for _, each in batches]


def fetch_request(
    *items: tuple[Placed, int], max_wait_ms: int = 0, max_bytes: int = 1 << 20, min_bytes: int = 1
) -> FetchRequest:
    """A header that fetches streams from offsets."""
    infos = tuple(
        FetchInfo(
            stream_range=StreamRange(stream_id=placed.stream_id, end_offset=-1),
            request_index=index,
            fetch_offset=offset,
            batch_max_bytes=max_bytes,
            stream_id=placed.stream_id,
        )
        for index, (placed, offset) in enumerate(items)
    )
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, fetch_requests=infos)


async def append(client: RawClient, *batches: tuple[Placed, bytes]) -> list[int]:
    """Append; return the base offsets in the order of the batches."""
    answers = await client.ask(Opcode.APPEND, *append_request(*batches))
    results = [result for answer in answers for result in answer.append_responses]
    assert all(is_success(result.status) for result in results), results
    offsets = {result.request_index: result.base_offset for result in results}
    return [offsets[index] for index in range(len(batches))]


# Frames by hand, so that the project's own codec is not its own judge.


@dataclass(frozen=True)
class WireFrame:
    """A frame as it came: every field, and the checksum as it was sent."""

    length: int
    magic: int
    opcode: int
    flags: int
    call_id: int
    header_format: int
    header: bytes
    payload: bytes
    checksum: int


def frame(
    opcode: int,
    call_id: int = 1,
    header: bytes = b"",
    payload: bytes = b"",
    *,
    flags: int = 0,
    magic: int = 23,
) -> bytes:
    """The bytes of a frame."""
    length = 16 + len(header) + len(payload)
    prefix = struct.pack(">IBHBI", length, magic, opcode, flags, call_id)
    header_length = b"\x01" + len(header).to_bytes(3, "big")
    return prefix + header_length + header + payload + struct.pack(">I", zlib.crc32(payload))


class Wire:
    """A blocking connection that sends bytes and reads frames."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.rpartition(":")
        self._socket = socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_SECONDS)

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def send(self, *frames: bytes) -> None:
        """Send bytes."""
        self._socket.sendall(b"".join(frames))

    def read(self) -> WireFrame:
        """Read one frame. Raises EOFError at the end of the connection."""
        fields = struct.unpack(">IBHBIB", self._exactly(13))
        header_length = int.from_bytes(self._exactly(3), "big")
        header = self._exactly(header_length)
        payload = self._exactly(fields[0] - 16 - header_length)
        return WireFrame(*fields, header, payload, *struct.unpack(">I", self._exactly(4)))

    def ask(self, *frames: bytes) -> WireFrame:
        """Send bytes; return the next frame."""
        self.send(*frames)
        return self.read()

    def maybe_read(self) -> WireFrame | None:
        """Read one frame, None at the end of the connection."""
        try:
            return self.read()
        except (EOFError, ConnectionError):
            return None

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                raise EOFError("the server closed the connection")
            data += part
        return data
