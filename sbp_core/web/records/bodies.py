"""Bodies of requests: each has a limit, and so has the memory of all of them together."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.message import Message
from typing import Final

from starlette.requests import ClientDisconnect, Request

from sbp_core import limits
from sbp_core.errors import RecordBatchError, SchemaError
from sbp_core.web.problems import ProblemError, refusal

BODY_BYTES_MAX: Final = 16 * limits.MIB
"""Bytes of a body, decompressed; the default."""
IN_FLIGHT_BYTES_MAX: Final = 64 * limits.MIB
"""Bytes of the bodies of all requests that are not answered yet."""
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_PIECE_BYTES: Final = 64 * limits.KIB
"""Bytes that are decompressed at a time."""
_REFUSAL_SECONDS: Final = 0.1
"""How long the answer to a body that is refused is held, so that a client that sends one such body
after the other takes little time from the other clients."""
_MEMBERS_MAX: Final = 1024
"""Members of a gzip body. Writers of blocks fill each with some 64 KiB."""


class Bodies:
    """Receives bodies of `body_bytes_max` at most, `in_flight_bytes_max` of all together."""

    def __init__(
        self,
        body_bytes_max: int = BODY_BYTES_MAX,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
    ) -> None:
        self.body_bytes_max: Final = body_bytes_max
        self._left_bytes = in_flight_bytes_max

    @asynccontextmanager
    async def received(self, request: Request) -> AsyncIterator[bytearray]:
        """Receive the body of a request; its memory counts until the request is answered.

        Raises ProblemError: 413 if it is too large, 415 for a coding or charset that is not known,
        400 for damaged gzip, 429 if the bodies of other requests leave no room.
        """
        _check_charset(request)
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding not in {"identity", "gzip"}:
            raise refusal(
                *(415, "unsupported-coding"),
                f"Content-Encoding {coding[:40]!a}: expected gzip, or none",
                Accept_Encoding="gzip",
            )
        declared = request.headers.get("content-length", "0")
        if int(declared) > self.body_bytes_max:  # h11 has checked that it is a number
            raise self._too_large()
        body = _Growing(self)
        held_seconds = 0.0
        try:
            inflater = None if coding == "identity" else _Inflater(body)
            async for chunk in request.stream():
                if inflater is None:
                    body.add(chunk)
                else:
                    await inflater.add(chunk)
            if inflater is not None:
                inflater.finish()
            yield body.data
        except ClientDisconnect:
            raise refusal(400, "incomplete-body", "the connection ended in the body") from None
        except (ProblemError, SchemaError, RecordBatchError):
            held_seconds = _REFUSAL_SECONDS
            raise
        finally:
            self._left_bytes += body.reserved_bytes
            await asyncio.sleep(held_seconds)

    def reserve(self, size_bytes: int) -> None:
        """Count bytes of a body. Raises ProblemError if there is no room for them."""
        if size_bytes > self._left_bytes:
            raise refusal(
                *(429, "too-many-bytes-in-flight"),
                "the bodies of other requests fill the memory that there is for them: retry later",
                Retry_After="1",
            )
        self._left_bytes -= size_bytes

    def _too_large(self) -> ProblemError:
        return refusal(
            *(413, "body-too-large"),
            f"the body has more than {self.body_bytes_max} bytes (decompressed): send it in several"
            " requests",
        )

    def check_size(self, size_bytes: int) -> None:
        """Raise ProblemError for a body that is too large."""
        if size_bytes > self.body_bytes_max:
            raise self._too_large()


class _Growing:
    """A body so far, and the memory that was reserved for it."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self.data = bytearray()
        self.reserved_bytes = 0

    def check_size(self, size_bytes: int) -> None:
        self._bodies.check_size(size_bytes)

    def add(self, chunk: bytes) -> None:
        self.check_size(len(self.data) + len(chunk))
        self._bodies.reserve(len(chunk))
        self.reserved_bytes += len(chunk)
        self.data += chunk


class _Inflater:
    """Decompresses gzip, a piece at a time, so that a few bytes never fill the memory.

    Other requests have a turn after each piece. Members and bytes that hold nothing take time, too,
    so both are bounded.
    """

    def __init__(self, body: _Growing) -> None:
        self._body = body
        self._member = zlib.decompressobj(_GZIP_WINDOW)
        self._member_count = 1
        self._received_bytes = 0

    async def add(self, chunk: bytes) -> None:
        self._received_bytes += len(chunk)
        self._body.check_size(self._received_bytes)
        rest = memoryview(chunk)
        while rest:
            if self._member.eof:  # gzip may have several members, one behind the other
                self._member = zlib.decompressobj(_GZIP_WINDOW)
                self._member_count += 1
                if self._member_count > _MEMBERS_MAX:
                    raise _damaged(f"it has more than {_MEMBERS_MAX} members: compress it as one")
            try:
                self._body.add(self._member.decompress(rest[:_PIECE_BYTES], _PIECE_BYTES))
            except zlib.error as error:
                raise _damaged(str(error)) from error
            taken = min(len(rest), _PIECE_BYTES)
            rest = rest[taken - len(self._member.unconsumed_tail or self._member.unused_data) :]
            await asyncio.sleep(0)

    def finish(self) -> None:
        """Raise ProblemError if the end is missing; an empty body is none."""
        if self._received_bytes and not self._member.eof:
            raise _damaged("its end is missing")


def _check_charset(request: Request) -> None:
    """Raise ProblemError, 415, for a body that is not in UTF-8."""
    header = Message()
    header["Content-Type"] = request.headers.get("content-type", "")
    charset = header.get_content_charset("utf-8")
    if charset != "utf-8":
        raise refusal(
            *(415, "unsupported-charset"),
            f"Content-Type: charset {charset[:40]!a}: expected utf-8, or none",
        )


def _damaged(reason: str) -> ProblemError:
    return refusal(400, "damaged-body", f"the body is no gzip: {reason}")
