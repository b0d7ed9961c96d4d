"""One connection: requests come in, and their responses go out in the same order.

Produce requests are answered at the same time, as producers send several before the first answer;
any other request waits until all earlier responses are sent, so that a connection has one at a
time, and a client that sends requests without reading has one response in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any, Final

from sbp_core import limits
from sbp_core.errors import FrameError, SbpError
from sbp_core.kafka.calls import Call
from sbp_core.kafka.gateway import Gateway
from sbp_core.kafka.memory import Memory
from sbp_core.kafka.messages import LENGTH_BYTES, Request, decode_request, encode_response, peek_api
from sbp_core.kafka.served_apis import APIS, PRODUCE, maybe_versions, refuse_version
from sbp_core.kafka.signing_in import SignIn

_LOG: Final = logging.getLogger(__name__)

REQUEST_BYTES_MAX: Final = 64 * limits.MIB
_UNSIGNED_BYTES_MAX: Final = 64 * limits.KIB
"""Bytes of a request before the caller has signed in."""
_CHUNK_BYTES: Final = 256 * limits.KIB
_IN_FLIGHT_MAX: Final = 16
IDLE_SECONDS: Final = 600.0
ARRIVAL_SECONDS: Final = 30.0
"""How long a request may take to arrive, and a part of a response to be accepted."""


class Connection:
    """A connection with a client."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        gateway: Gateway,
        memory: Memory,
        sign_in: SignIn,
        address: str,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._gateway = gateway
        self._memory = memory
        self._sign_in = sign_in
        self._address = address
        self._turn = asyncio.Lock()
        self._orders: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._answers: asyncio.Queue[asyncio.Task[bytes | None] | None]
        self._answers = asyncio.Queue(_IN_FLIGHT_MAX)

    async def serve(self) -> None:
        """Answer requests until the client leaves, or sends what is no request."""
        receiving = asyncio.create_task(self._receive_all())
        sending = asyncio.create_task(self._send())
        try:
            await asyncio.wait({receiving, sending}, return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                await receiving
                await sending
        except (OSError, TimeoutError, asyncio.IncompleteReadError, SbpError) as error:
            _LOG.debug("connection lost address=%s: %s", self._address, error)
        finally:
            self._writer.transport.abort()
            left: list[asyncio.Task[Any]] = [receiving, sending]
            while not self._answers.empty():
                task = self._answers.get_nowait()
                left += [] if task is None else [task]
            for each in left:
                each.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            self._sign_in.close()

    async def _receive_all(self) -> None:
        while (frame := await self._receive()) is not None:
            await self._begin(frame)
        await self._answers.put(None)

    async def _receive(self) -> bytes | None:
        """Return the next request, whose bytes count until it is answered; None at the end."""
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                head = await self._reader.readexactly(LENGTH_BYTES)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise
            return None
        size = int.from_bytes(head, "big", signed=True)
        most = REQUEST_BYTES_MAX if self._sign_in.is_done else _UNSIGNED_BYTES_MAX
        if not 0 < size <= most:
            raise FrameError(f"a request of {size} bytes; at most {most} are accepted")
        chunks: list[bytes] = []
        left = size
        try:
            async with asyncio.timeout(ARRIVAL_SECONDS):
                while left:
                    chunk = await self._reader.read(min(left, _CHUNK_BYTES))
                    if not chunk:
                        raise FrameError("the connection ended in a request")
                    await self._memory.claim(len(chunk))
                    chunks.append(chunk)
                    left -= len(chunk)
        except BaseException:
            self._memory.free(size - left)
            raise
        return b"".join(chunks)

    async def _begin(self, frame: bytes) -> None:
        """Begin to answer a request."""
        try:
            if peek_api(frame)[0] != PRODUCE:
                await self._answers.join()
            task = asyncio.create_task(self._work(frame))
        except BaseException:
            self._memory.free(len(frame))
            raise
        task.add_done_callback(lambda _: self._memory.free(len(frame)))
        try:
            await self._answers.put(task)
        except BaseException:
            task.cancel()
            raise

    def _work(self, frame: bytes) -> Coroutine[Any, Any, bytes | None]:
        """Return what answers a request. Raises SbpError for what is no request that is served."""
        refused = refuse_version(frame)
        if refused is not None:
            return _done(refused)
        return self._answer(decode_request(frame))

    async def _answer(self, request: Request) -> bytes | None:
        fields = maybe_versions(request) or await self._sign_in.maybe_answer(request)
        if fields is None:
            api = APIS[request.api_key]
            call = Call(
                request, self._sign_in.client(), self._gateway, self._address, self._turn,
                self._orders, self._memory,
            )  # fmt: skip
            fields = await api.answer(call)
        if fields is None:
            return None
        return encode_response(request.api_key, request.version, request.correlation_id, fields)

    async def _send(self) -> None:
        """Send the responses, in the order of the requests."""
        while (task := await self._answers.get()) is not None:
            try:
                response = await task
            except SbpError as error:  # of no partition: there is no place for it in the response
                _LOG.warning("connection closed address=%s: %s", self._address, error)
                return
            except Exception:  # noqa: BLE001 - a gateway outlives the mistakes of its handlers
                _LOG.exception("connection closed address=%s: a request failed", self._address)
                return
            if response is not None:
                await self._write(response)
            self._answers.task_done()

    async def _write(self, response: bytes) -> None:
        """Send a response. Raises OSError, or TimeoutError if the client accepts no more of it."""
        with self._memory.holding(len(response)):
            for start in range(0, len(response), _CHUNK_BYTES):
                self._writer.write(response[start : start + _CHUNK_BYTES])
                async with asyncio.timeout(ARRIVAL_SECONDS):
                    await self._writer.drain()


async def _done(response: bytes) -> bytes:
    return response
