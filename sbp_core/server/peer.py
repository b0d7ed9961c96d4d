"""One accepted connection: bytes through the session, requests to the dispatcher, answers back.

`Peer` puts the parts together: incoming.py reads frames, outgoing.py sends answers, and `Work` has
the requests in progress. Handlers wait in `send_response` or `reserve` while the peer does not
read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, cast

from sbp_core import limits
from sbp_core.errors import DeadlineExceededError, SbpError, ThrottledError
from sbp_core.failpoints import failpoint
from sbp_core.record_sizes import DEFAULT, RecordSizes
from sbp_core.server.budget import Budget, Held
from sbp_core.server.dispatch import Dispatcher
from sbp_core.server.incoming import Incoming, is_overdue
from sbp_core.server.outgoing import Outgoing, Unread
from sbp_core.server.quotas import Allowance, Quotas
from sbp_core.server.runtime import Clock, Turns
from sbp_core.server.trust import Standing
from sbp_core.session.connection import Connection, Payload
from sbp_core.session.negotiation import NOTHING, Agreement, FeatureName, accept
from sbp_core.session.states import (
    ConnectionBroken,
    Event,
    GoawayReceived,
    RequestReceived,
    RequestRefused,
)
from sbp_core.sockets import TlsLink
from sbp_core.wire.checksum import Buffer
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import Feature
from sbp_core.wire.opcodes import Opcode

_LOG: Final = logging.getLogger(__name__)


class Peer(asyncio.BufferedProtocol):
    """The server's end of one connection."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        clock: Clock,
        on_closed: Callable[[Peer], None],
        *,
        budget: Budget,
        unread: Unread,
        turns: Turns,
        connection_id: int,
        quotas: Quotas | None = None,
        owner: str = "",
        sizes: RecordSizes = DEFAULT,
    ) -> None:
        self.owner = owner
        """The address, or network, that the connection counts for."""
        self.name = f"connection {connection_id}"
        self.standing = Standing()
        """The role that the peer has proven."""
        self._tls: TlsLink | None = None
        self._connection_id = connection_id
        self._dispatcher = dispatcher
        self._clock = clock
        self._on_closed = on_closed
        self._sizes = sizes
        self._session = Connection(sizes.frame_bytes)
        self._outgoing = Outgoing(unread)
        self._allowance = Allowance(quotas)
        self._incoming = Incoming(
            self,
            self._session,
            self._outgoing,
            budget=budget,
            unread=unread,
            turns=turns,
            clock=clock,
            allowance=self._allowance,
            owner=owner,
            sizes=sizes,
        )
        self._work = Work(clock, self._on_work_ended)
        self._at_rest: asyncio.Event | None = None
        """Set once nothing is served; for `finish`."""
        self._leave_at: float | None = None
        """After GOAWAY of either side: when to close, once nothing is being served."""
        self._lost_at: float | None = None

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection."""
        accepted = cast("asyncio.Transport", transport)
        self._tls = transport if isinstance(transport, TlsLink) else None
        self._incoming.connect(accepted, self._outgoing.connect(accepted))
        if address := transport.get_extra_info("peername"):
            self.name = f"{address[0]}:{address[1]}, {self.name}"

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return self._session.decoder.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the frames that are complete, when it is this connection's turn."""
        self._incoming.received(nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the tasks that serve the peer."""
        self._lost_at = self._clock.monotonic()
        try:
            self._session.close()
            self._allowance.end(self)
            self._incoming.close()
            self._work.cancel()
            self.note_rest()
            self._outgoing.lose()
        finally:  # else the connection would count for its address for ever
            self._on_closed(self)
        _LOG.debug("connection closed peer=%s: %s", self.name, exc or "by either side")

    def pause_writing(self) -> None:
        """The peer does not read fast enough: answers wait."""
        self._outgoing.pause()
        self._incoming.go_on()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._outgoing.resume()
        self._incoming.go_on()

    # For calls: all but `send_now` wait while the peer does not read

    @property
    def agreement(self) -> Agreement:
        """The features that hold on this connection."""
        return self._session.agreement

    @property
    def may_be_server(self) -> bool:
        """Whether the peer may be a server of the cluster: with TLS these show a certificate."""
        return self._tls is None or self._tls.channel.may_be_server

    @property
    def certificate(self) -> bytes | None:
        """The certificate that the peer has shown, in DER, which was verified; None without one."""
        return None if self._tls is None else self._tls.channel.peer_certificate

    def negotiate(self, offered: Sequence[Feature]) -> tuple[Agreement, tuple[Feature, ...]]:
        """Return what to agree on and how to answer an offer.

        A second offer changes nothing; its answer has only how large a record may be.
        """
        if self.agreement is NOTHING:
            return accept(offered, self._connection_id, self._sizes)
        asked = (each for each in offered if each.name == FeatureName.RECORD_BYTES)
        return self.agreement, accept(asked, self._connection_id, self._sizes)[1]

    def adopt(self, agreement: Agreement) -> None:
        """Use what was agreed on, now that the answer was sent."""
        self._session.adopt(agreement, is_client=False)

    def pack(self, parts: Sequence[Buffer], crc32: int | None = None) -> Payload:
        """Return a payload as it is sent, which takes a while if it is compressed.

        `crc32` is the checksum of the parts if it is known.
        """
        return self._session.pack(parts, crc32)

    def note_use(self) -> None:
        """Note that the connection is in use, though no request says so."""
        self._work.note_use()

    async def send_response(
        self, request: Frame, header: bytes, payload: Payload, *, is_end: bool
    ) -> None:
        """Send one response frame once there is room for it."""
        size = len(header) + sum(map(len, payload.parts))
        if self.has_room_for(size):
            self.send_now(request, header, payload, is_end=is_end)
            return
        async with self._outgoing.room(size):
            self.send_now(request, header, payload, is_end=is_end)

    async def send_system_error(self, request: Frame, error: SbpError) -> None:
        """End a call with a system error frame."""
        async with self._outgoing.room(0):
            self._refuse(request, error)

    def has_room_for(self, size: int) -> bool:
        """Whether a frame of `size` bytes need not wait, if nothing is awaited before."""
        return self._outgoing.has_room_for(size)

    def reserve(self, size: int) -> AbstractAsyncContextManager[None]:
        """Wait for room for one response frame of about `size` bytes, and keep it.

        For a response whose making holds what others wait for: those must not wait for this peer.
        A connection makes RESPONSES_RESERVED_MAX such responses at a time.
        """
        return self._outgoing.reserve(size)

    def send_now(self, request: Frame, header: bytes, payload: Payload, *, is_end: bool) -> None:
        """Send one response frame for which room is reserved."""
        failpoint("server.before_answer")
        buffers = self._session.send_response(request, header, payload, is_end=is_end)
        self._outgoing.send(buffers)
        self._allowance.charge_answer(buffers)

    def throttled(self, header: object, payload: Payload) -> object:
        """Return the header of an answer, which asks for a wait if the peer is above its quota."""
        return self._allowance.throttled(header, payload.parts)

    # The listener's view

    def spare_ms(self) -> float:
        """Return for how long the connection could have been closed without harm, in ms.

        Negative while it is too young for that, in use, or at work.
        """
        if self._has_work or self._incoming.is_receiving or self._leave_at is not None:
            return -1.0
        return self._work.spare_ms(self._clock.monotonic())

    def close_if_overdue(self, idle_seconds_max: float) -> None:
        """Close the connection if the peer made the server wait for longer than it may."""
        now = self._clock.monotonic()
        if self._outgoing.is_overdue(now):
            waiting_bytes = self._outgoing.waiting_bytes
            _LOG.warning(
                "disconnected, the peer does not read peer=%s unread_bytes=%d",
                self.name,
                waiting_bytes,
            )
            self.abort()
        elif self._outgoing.is_closing or (
            not self._incoming.is_reading and self._outgoing.abort_if_broken()
        ):
            return
        elif late_ms := self._incoming.late_ms(now):
            _LOG.warning(
                "connection ended peer=%s: no whole frame within %d ms", self.name, late_ms
            )
            self._part(DeadlineExceededError(f"no whole frame arrived within {late_ms} ms"))
        elif self._leave_at is not None:
            self._close_if_left()
        elif not self._has_work and self._work.idle_ms(now) > 1000 * idle_seconds_max:
            _LOG.debug("GOAWAY sent peer=%s: the connection is idle", self.name)
            self.go_away()

    def forsake_if_overdue(self) -> bool:
        """After the end of the connection: whether nothing is done for it any longer.

        Work that ignores its end is a mistake; what it counts for is given back all the same.
        """
        now = self._clock.monotonic()
        if self._work.has_tasks and not is_overdue(self._lost_at, now, limits.HANDLER_CANCEL_MS):
            return False
        for task in self._work.forsake():
            _LOG.error(
                "request abandoned peer=%s: its task ignores cancellation: %r", self.name, task
            )
        return True

    def go_away(self) -> None:
        """Announce that no new requests are taken, and let the peer close the connection.

        A request that is under way already is refused, so the peer knows that it had no effect. It
        has GOAWAY_GRACE_MS to close.
        """
        self._allowance.end(self)
        self._outgoing.send(self._session.send_goaway())
        if self._leave_at is None:
            self._leave_at = self._clock.monotonic() + limits.GOAWAY_GRACE_MS / 1000

    async def finish(self) -> None:
        """After `go_away`: answer all that is being served, let it leave, and close.

        Until then, requests that the peer sent before it received GOAWAY are refused, so the peer
        knows that they had no effect.
        """
        if self._has_work:
            self._at_rest = asyncio.Event()
            await self._at_rest.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.GOAWAY_GRACE_MS / 1000):
                await self._outgoing.wait_closed()
        self.close()
        await self._outgoing.wait_closed()

    def close(self) -> None:
        """Close after what was sent has left, for which the peer has to read it."""
        self._outgoing.close()

    def abort(self) -> None:
        """Close at once, whatever the peer has not read yet."""
        self._outgoing.abort()

    # Received and served

    def on_event(self, event: Event) -> bool:
        """Handle what a frame of the peer means; return False to get it again within the quota."""
        match event:
            case RequestReceived(frame) if frame.opcode == Opcode.HEARTBEAT:
                self._incoming.begin(frame)
            case RequestReceived(frame):
                if self._allowance.is_off:
                    self._begin(frame)
                else:
                    return self._begin_within_quota(frame)
            case RequestRefused(frame, error):
                self._refuse(frame, error)
            case GoawayReceived():
                self._leave_at = self._clock.monotonic()
                self._close_if_left()
            case ConnectionBroken(error):
                _LOG.warning("connection ended peer=%s: %s", self.name, error)
                self._part(error)
            case _:
                pass
        return True

    def serve(self, frame: Frame, held: Held) -> None:
        """Serve a request that counts for what is `held`."""
        try:
            task = self._dispatcher.begin(
                frame,
                self,
                received_at=self._incoming.received_at,
                on_end=partial(self._work.end, held, frame.opcode != Opcode.HEARTBEAT),
                held=held,
            )
        except BaseException:  # before the call could begin, so nothing else gives this back
            held.end()
            raise
        if task is not None:
            self._work.go_on(task, held)

    def note_rest(self) -> None:
        """Continue with what waits until no request is in progress."""
        if not self._has_work:
            if self._at_rest is not None:
                self._at_rest.set()
            self._close_if_left()

    @property
    def _has_work(self) -> bool:
        """Whether requests are served, wait for room, or may be here unseen."""
        return self._work.has_tasks or self._incoming.has_work

    def _on_work_ended(self, error: Exception | None) -> None:
        self.note_rest()
        if error is not None:
            _LOG.error("answer not sent peer=%s: %s", self.name, error)
            self.close()

    def _begin(self, frame: Frame) -> None:
        if frame.opcode == Opcode.PING:
            self._answer_ping(frame)
        else:
            self.note_use()
            self._incoming.begin(frame)

    def _begin_within_quota(self, frame: Frame) -> bool:
        """Begin a request and count it for its identity; return False if it has to wait.

        Refuse it if the identity has too many connections, or if the request has waited too long.
        The identity, and whether it is above its quota, is not known before the first request.
        """
        try:
            self._allowance.bind(self._dispatcher.gate.maybe_metered(self), self)
        except ThrottledError as error:
            _LOG.warning("connection refused peer=%s: %s", self.name, error)
            self._refuse(frame, error)
            self.go_away()
            return True
        if not self._allowance.is_open:
            return False
        try:
            self._allowance.charge_request(len(frame.header) + len(frame.payload))
        except ThrottledError as error:
            self._refuse(frame, error)
        else:
            self._begin(frame)
        return True

    def _answer_ping(self, frame: Frame) -> None:
        echo = self._incoming.echo
        refusal = echo.maybe_refusal(len(frame.header) + len(frame.payload))
        if refusal is not None:
            self._refuse(frame, refusal)
            return
        buffers = self._session.send_response(frame, frame.header, [frame.payload])
        self._outgoing.send(buffers)
        self._allowance.charge_answer(buffers)
        echo.end()

    def _close_if_left(self) -> None:
        is_due = self._leave_at is not None and self._leave_at <= self._clock.monotonic()
        if is_due and not self._has_work:
            self.close()

    def _refuse(self, request: Frame, error: SbpError) -> None:
        self._outgoing.send(self._session.send_system_error(request, error))

    def _part(self, reason: SbpError) -> None:
        """Report the reason, and close."""
        self._outgoing.send(self._session.send_farewell(reason))
        self.close()


class Work:
    """The requests in progress on one connection.

    `on_ended` is called when one ends that had to wait, or when its answer could not be sent.
    """

    def __init__(self, clock: Clock, on_ended: Callable[[Exception | None], None]) -> None:
        self._clock = clock
        self._on_ended = on_ended
        self._tasks: dict[Held, asyncio.Task[None]] = {}
        self._used_at = clock.monotonic()
        self._was_used = False

    @property
    def has_tasks(self) -> bool:
        """Whether anything is being served."""
        return bool(self._tasks)

    def go_on(self, task: asyncio.Task[None], held: Held) -> None:
        """Note the task of a request that counts for what is `held`."""
        self._tasks[held] = task

    def end(self, held: Held, is_use: bool, error: Exception | None) -> None:  # noqa: FBT001
        """Note the end of a request, and why its answer could not be sent."""
        has_waited = self._tasks.pop(held, None) is not None
        held.end()
        if has_waited and is_use:
            self.note_use()
        if has_waited or error is not None:
            self._on_ended(error)

    def cancel(self) -> None:
        """Cancel the tasks."""
        for task in self._tasks.values():
            task.cancel()

    def forsake(self) -> list[asyncio.Task[Any]]:
        """Give back what tasks count for that did not end; return those."""
        for held in self._tasks:
            held.end()
        return list(self._tasks.values())

    def note_use(self) -> None:
        """A request begins or ends. PING and the HEARTBEAT of a client are no use."""
        self._used_at = self._clock.monotonic()
        self._was_used = True

    def idle_ms(self, now: float) -> float:
        """Return for how long nothing was asked for, in ms."""
        return 1000 * (now - self._used_at)

    def spare_ms(self, now: float) -> float:
        """Return for how long a newcomer could have had the place, in ms; negative before that."""
        spared_ms = limits.SPARED_CONNECTION_MS if self._was_used else limits.UNUSED_CONNECTION_MS
        return self.idle_ms(now) - spared_ms
