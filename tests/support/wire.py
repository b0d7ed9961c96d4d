"""Both ends of SBP connections, frame by frame: a raw client, a scripted server, a listener."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from sbp_core.errors import ConnectionLostError, SbpError
from sbp_core.session.connection import Connection
from sbp_core.session.negotiation import Agreement, RequestedFeatures, offer, settle
from sbp_core.session.states import (
    CallFailed,
    ConnectionBroken,
    Event,
    GoawayReceived,
    RequestReceived,
    ResponseReceived,
)
from sbp_core.tls import Tls, ready
from sbp_core.wire.checksum import Buffer
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import (
    RESPONSE_TABLES,
    HeartbeatRequest,
    decode_header,
    decode_system_error,
    encode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import check_status

_READ_BYTES = 256 * 1024


class RawClient:
    """One connection. Calls may overlap; a server's PING is answered."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout_seconds: float = 30.0,
        from_address: str | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._own_address = None if from_address is None else (from_address, 0)
        self._tls = None if tls is None else ready(tls).current()
        self._timeout_seconds = timeout_seconds
        self._session = Connection()
        self._frames: dict[int, list[Frame]] = {}
        self._answers: dict[int, asyncio.Future[list[Frame]]] = {}
        self.received_bytes = 0
        self.was_sent_away = False
        """Whether the server sent GOAWAY."""

    @classmethod
    def at(cls, endpoint: str, **options: Any) -> Self:
        """A client of "host:port"."""
        host, _, port = endpoint.rpartition(":")
        return cls(host.strip("[]"), int(port), **options)

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(
            self._host, self._port, local_addr=self._own_address, ssl=self._tls
        )
        self._receiver = asyncio.create_task(self._receive())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._receiver.cancel()
        self._writer.close()
        await asyncio.gather(self._receiver, self._writer.wait_closed(), return_exceptions=True)

    async def call(
        self, opcode: Opcode, header: object | bytes = b"", payload: Sequence[Buffer] = ()
    ) -> list[Frame]:
        """Return all frames that answer a request; `header` is a table, or raw bytes.

        A system error frame is returned like any other. Raises ConnectionLostError when the
        connection ends first.
        """
        data = header if isinstance(header, bytes) else encode_header(header)
        call_id, buffers = self._session.start_call(opcode, data, payload)
        answer: asyncio.Future[list[Frame]] = asyncio.get_running_loop().create_future()
        self._answers[call_id] = answer
        self._writer.writelines(buffers)
        await self._writer.drain()
        async with asyncio.timeout(self._timeout_seconds):
            return await answer

    async def ask(
        self, opcode: Opcode, header: object | bytes = b"", payload: Sequence[Buffer] = ()
    ) -> list[Any]:
        """Return the decoded headers that answer a request.

        Raises the StatusError of a system error frame; statuses in headers are left to the test.
        """
        frames = await self.call(opcode, header, payload)
        for frame in frames:
            if frame.is_system_error:
                check_status(decode_system_error(frame.header).status)
        return [decode_header(RESPONSE_TABLES[opcode], frame.header) for frame in frames]

    async def greet(self, features: RequestedFeatures) -> Agreement:
        """Offer features, and use what the server accepts from here on."""
        offered = offer(features)
        (answer,) = await self.ask(Opcode.HEARTBEAT, HeartbeatRequest(features=offered))
        agreement = settle(offered, answer.features)
        self._session.adopt(agreement, is_client=True)
        return agreement

    async def wait_closed(self) -> None:
        """Wait until the server has closed the connection."""
        async with asyncio.timeout(self._timeout_seconds):
            await asyncio.shield(self._receiver)

    async def _receive(self) -> None:
        try:
            while data := await self._reader.read(_READ_BYTES):
                self.received_bytes += len(data)
                self._session.decoder.receive_data(data)
                for event in self._session.events():
                    self._on_event(event)
        except ConnectionResetError as error:
            self._fail(ConnectionLostError(str(error)))
        for failed in self._session.close():
            self._on_event(failed)

    def _on_event(self, event: Event) -> None:
        match event:
            case ResponseReceived(call_id, frame):
                self._frames.setdefault(call_id, []).append(frame)
                answer = self._answers[call_id]
                if frame.is_end and not answer.done():
                    answer.set_result(self._frames.pop(call_id))
            case CallFailed(call_id, error):
                if not self._answers[call_id].done():
                    self._answers[call_id].set_exception(error)
            case RequestReceived(frame) if frame.opcode == Opcode.PING:
                self._writer.writelines(
                    self._session.send_response(frame, frame.header, [frame.payload])
                )
            case GoawayReceived():
                self.was_sent_away = True
            case ConnectionBroken(error):
                self._fail(error)
            case _:
                pass

    def _fail(self, error: SbpError) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
