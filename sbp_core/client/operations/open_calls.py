"""The calls of a client operation, and the answers that arrive for them.

An operation is a coroutine that opens `Calls` to send requests and to wait for answers. The `Calls`
of asyncio are in io/aio_transport.py; tests have `Calls` that answer in memory. Times are
milliseconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol, Self

from msgspec import Struct

from sbp_core import limits
from sbp_core.client.connecting import CallTiming, OnTiming
from sbp_core.errors import HeaderError, SbpError
from sbp_core.session.negotiation import FeatureName
from sbp_core.wire.checksum import Buffer
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import RESPONSE_TABLES, decode_header
from sbp_core.wire.opcodes import Opcode


class Call(Struct, frozen=True):
    """One request frame for `endpoint`; `header` is a table of wire.headers, or None.

    A call with a `feature` is sent only on connections that agreed on the feature. An answer longer
    than `answer_bytes_max` ends the call and the connection.
    """

    endpoint: str
    opcode: Opcode
    header: object | None
    timeout_ms: float
    payload: tuple[Buffer, ...] = ()
    feature: FeatureName | None = None
    answer_bytes_max: int = limits.ANSWER_BYTES_MAX

    @property
    def largest_part_bytes(self) -> int:
        """Bytes of the largest part of the payload, which is a batch in an APPEND."""
        return max(map(len, self.payload), default=0)


Sink = Callable[[Frame | SbpError], None]
"""Where the frames of a call's answer go, and the error that ends it."""


class Reply(Struct, frozen=True):
    """The answer of a call: frames, then its end or the `error` that cut it short."""

    frames: tuple[Frame, ...]
    error: SbpError | None = None


class Arrival(Struct, frozen=True):
    """A response frame of call `number`, or the error that ends it."""

    number: int
    content: Frame | SbpError

    @property
    def is_last(self) -> bool:
        """Whether nothing more comes for the call."""
        return isinstance(self.content, SbpError) or self.content.is_end


class Calls(Protocol):
    """The calls of one operation. Leaving the `with` block abandons the calls that are open."""

    def now_ms(self) -> float:
        """Return the time in ms."""

    async def start(self, call: Call) -> int:
        """Send a call; return its number. A failure arrives like an answer.

        Waits while the connection takes no more bytes.
        """

    async def receive(
        self, numbers: Collection[int], until_ms: float | None = None
    ) -> Arrival | None:
        """Wait for an answer to one of the calls; None at `until_ms`."""

    def abandon(self, number: int) -> None:
        """Stop listening to a call."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


OpenCalls = Callable[[], Calls]
"""Opens the calls of an operation."""


OnSilence = Callable[[Collection[int]], Awaitable[Mapping[int, SbpError]]]
"""Gets the indexes of unanswered calls; returns the errors of the calls to give up."""


async def gather(
    open_calls: OpenCalls, wanted: Sequence[Call], on_silence: OnSilence | None = None
) -> list[Reply]:
    """Execute calls concurrently; return the replies in the same order.

    `on_silence` is asked whenever nothing has arrived for PRIMARY_PATIENCE_MS.
    """
    with open_calls() as calls:
        frames: dict[int, list[Frame]] = {}
        errors: dict[int, SbpError] = {}
        for call in wanted:
            frames[await calls.start(call)] = []
        waiting = set(frames)
        while waiting:
            until_ms = on_silence and calls.now_ms() + limits.PRIMARY_PATIENCE_MS
            arrival = await calls.receive(waiting, until_ms)
            if arrival is None:
                assert on_silence is not None, "else nothing ends the wait but an arrival"
                numbers = list(frames)
                silent = [index for index, number in enumerate(numbers) if number in waiting]
                for index, error in (await on_silence(silent)).items():
                    errors[numbers[index]] = error
                    waiting.discard(numbers[index])
                    calls.abandon(numbers[index])
                continue
            if isinstance(arrival.content, SbpError):
                errors[arrival.number] = arrival.content
            else:
                frames[arrival.number].append(arrival.content)
            if arrival.is_last:
                waiting.discard(arrival.number)
    return [Reply(tuple(parts), errors.get(number)) for number, parts in frames.items()]


async def pause(open_calls: OpenCalls, wait_ms: float) -> None:
    """Wait for some time."""
    with open_calls() as calls:
        await calls.receive((), calls.now_ms() + wait_ms)


def timed(call: Call, sink: Sink, on_timing: OnTiming, clock: Callable[[], float]) -> Sink:
    """Return a sink that also reports the end of the answer to `on_timing`."""
    began_at = clock()

    def on_content(content: Frame | SbpError) -> None:
        ended_at = clock()
        sink(content)
        if isinstance(content, Frame) and content.is_end:
            elapsed_ms = 1000 * (ended_at - began_at)
            server_ms = _maybe_server_ms(call, content)
            on_timing(CallTiming(call.endpoint, call.opcode.name, elapsed_ms, server_ms))

    return on_content


def _maybe_server_ms(call: Call, last: Frame) -> float | None:
    table = RESPONSE_TABLES.get(call.opcode)
    if table is None or last.is_system_error:
        return None
    try:
        status = getattr(decode_header(table, last.header), "status", None)
    except HeaderError:
        return None
    if status is None or status.handler_duration_us < 0:
        return None
    return float(status.handler_duration_us / 1000)
