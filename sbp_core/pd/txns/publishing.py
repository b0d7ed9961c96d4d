"""Publishing committed batches: in each stream one decision after the other.

The streams of a decision are published at the same time. In one stream, END_TXN of a decision is
sent only after the store has recorded that the decision before it is published there. A failure is
retried, also after a restart. Only records that a range server reports as lost are given up, and
only on request. Only the range server knows whether something can still be published, so a request
waits for the next answer of the server.

Read `publications.py` first: the states and inputs of one publication.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from sbp_core import limits
from sbp_core.errors import RequestTimeoutError, SbpError, ShuttingDownError, StoreUnavailableError
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.streams.sealing import Sealer
from sbp_core.pd.txns.decisions import Decision, Manifest, Part, TxnRecord
from sbp_core.pd.txns.ending import Combiner, RangeServers, Route
from sbp_core.pd.txns.publications import (
    Publication,
    PublicationInput,
    PublicationState,
    publications_of,
)
from sbp_core.server.runtime import Clock, cancel_all
from sbp_core.wire.headers import RangeId
from sbp_core.wire.status import check_status

_LOG: Final = logging.getLogger(__name__)

_ASKING: Final = {PublicationState.ENDING, PublicationState.COPIED, PublicationState.STUCK}
_PAUSING: Final = {
    None,
    PublicationInput.INCOMPLETE,
    PublicationInput.FAULT,
    PublicationInput.COPIES_REFUSED,
}
"""Inputs that leave the publication waiting before its next try."""

UNANSWERED: Final = RequestTimeoutError.of("its range server has not answered yet")
STOPPING: Final = ShuttingDownError.of("the placement driver is about to stop")
EARLIER_FIRST: Final = "an earlier batch has to be published there first, or given up"

PublicationKey = tuple[int, int]
"""(decision's number, stream id)."""

Reason = Exception | str
"""Why a publication is not given up."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Whether all of a decision is published or given up, and what was given up."""

    is_published: bool
    given_up: tuple[Part, ...]


@dataclass(slots=True)
class _Open:
    """A decision that is not published yet in some streams."""

    hidden_in: set[int]
    given_up: tuple[Part, ...]
    decided_at_ms: int
    is_over: asyncio.Event = field(default_factory=asyncio.Event)


class OpenDecisions:
    """The decisions that are not yet published, or given up, in all their streams."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._is_stopped = False
        self._are_over = asyncio.Event()
        self._are_over.set()

    def add(self, txn: TxnRecord) -> None:
        """Add a decision that the publisher begins to publish."""
        hidden_in = {part.stream_id for part in txn.parts}
        self._open[txn.txn_number] = _Open(hidden_in, txn.given_up, txn.decided_at_ms)
        self._are_over.clear()

    async def wait_all(self) -> None:
        """Wait until all are published, or given up."""
        await self._are_over.wait()

    def count(self) -> tuple[int, int | None]:
        """Return how many there are, and when the oldest was decided, in ms since the epoch."""
        oldest_ms = min((each.decided_at_ms for each in self._open.values()), default=None)
        return len(self._open), oldest_ms

    def stop(self) -> None:
        """End all waiting calls."""
        self._is_stopped = True
        self._are_over.set()
        for decision in self._open.values():
            decision.is_over.set()

    async def wait(self, txn: TxnRecord, timeout_ms: float) -> Progress:
        """Wait until a decision is visible, or given up, in all its streams, but not for longer."""
        decision = self._open.get(txn.txn_number)
        if decision is None:
            return Progress(not self._is_stopped, txn.given_up)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                await decision.is_over.wait()
        return Progress(not decision.hidden_in, decision.given_up)

    def note_done(
        self, txn_number: int, stream_id: int, given_up: tuple[Part, ...] | None = None
    ) -> None:
        """Note that a decision is published in a stream, or given up: all that was so far."""
        decision = self._open.get(txn_number)
        if decision is None:
            return
        decision.given_up = decision.given_up if given_up is None else given_up
        decision.hidden_in.discard(stream_id)
        if not decision.hidden_in:
            decision.is_over.set()
            del self._open[txn_number]
            if not self._open:
                self._are_over.set()


class GiveUpRequests:
    """The calls that ask to give one publication up. They end the pause before its next try."""

    def __init__(self) -> None:
        self._answers: set[asyncio.Future[Exception | None]] = set()
        self._is_asked = asyncio.Event()

    async def ask(self, timeout_ms: float) -> Exception | None:
        """Return why the publication is not given up; None if it is, or is published.

        UNANSWERED if the server does not answer in time.
        """
        answer: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._answers.add(answer)
        self._is_asked.set()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await answer
        except TimeoutError:
            return UNANSWERED
        finally:
            self._answers.discard(answer)

    @contextmanager
    def granting(self) -> Iterator[bool]:
        """Whether the publication is to be given up: the body does that, or raises why it cannot.

        The calls that wait for it get the outcome afterwards.
        """
        answers, self._answers = self._answers, set()
        reason: Exception | None = STOPPING
        try:
            yield bool(answers)
        except Exception as error:
            reason = error
            raise
        else:
            reason = None
        finally:
            _answer(answers, reason)

    def answer(self, reason: Exception | None) -> None:
        """Answer all calls: why the publication is not given up, None if it need not be."""
        _answer(self._answers, reason)
        self._answers = set()

    async def pause(self, seconds: float) -> None:
        """Wait, at most until a call asks to give the publication up."""
        self._is_asked.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_asked.wait()


def _answer(answers: Iterable[asyncio.Future[Exception | None]], reason: Exception | None) -> None:
    for each in answers:
        if not each.done():
            each.set_result(reason)


@dataclass(slots=True)
class _Pending:
    """A publication in the queue of its stream."""

    publication: Publication
    requests: GiveUpRequests = field(default_factory=GiveUpRequests)
    is_stuck: bool = False
    """Whether it cannot be published as it was committed, so far."""

    @property
    def key(self) -> PublicationKey:
        return self.publication.txn_number, self.publication.stream_id


class _Hold:
    """Lets many pass at a time, or one hold them all up; on one event loop."""

    def __init__(self) -> None:
        self._passing_count = 0
        self._is_held = False
        self._has_changed = asyncio.Condition()

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Pass, after a hold that lasts now."""
        async with self._has_changed:
            await self._has_changed.wait_for(lambda: not self._is_held)
            self._passing_count += 1
        try:
            yield
        finally:
            self._passing_count -= 1
            await self._notify()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Wait until all callers have passed, and let none pass in the body."""
        async with self._has_changed:
            await self._has_changed.wait_for(lambda: not self._is_held)
            self._is_held = True
        try:
            async with self._has_changed:
                await self._has_changed.wait_for(lambda: not self._passing_count)
            yield
        finally:
            self._is_held = False
            await self._notify()

    async def _notify(self) -> None:
        async with self._has_changed:
            self._has_changed.notify_all()


class Publisher:
    """Publishes committed batches in the background."""

    def __init__(
        self, store: StoreThread, servers: RangeServers, sealer: Sealer, clock: Clock
    ) -> None:
        self._store = store
        self._servers = servers
        self._sealer = sealer
        self._clock = clock
        self._queues: dict[int, deque[_Pending]] = {}
        """By stream: its publications, of which the first one is under way."""
        self.open_decisions: Final = OpenDecisions()
        self._tasks: set[asyncio.Task[None]] = set()
        self._recorder = Combiner(self._record, limits.STREAMS_PER_REQUEST_MAX)
        self._is_stopped = False
        self._loop: asyncio.AbstractEventLoop
        self._last_number = -1
        """That of the last decision that was passed on to be published."""
        self._may_lack_one = True
        """Whether a decision may be in the store that was not passed on: an error hid it."""
        self._catching_up: asyncio.Task[None] | None = None
        self._hold = _Hold()

    async def start(self) -> None:
        """Continue with the decisions that the last placement driver did not publish."""
        self._loop = asyncio.get_running_loop()
        await self._store.run(self._catch_up)

    async def stop(self) -> None:
        """Stop; the next start continues. All waiting calls end."""
        self._is_stopped = True
        self.open_decisions.stop()
        for queue in self._queues.values():
            for each in queue:
                each.requests.answer(STOPPING)
        await cancel_all(self._tasks)
        await self._recorder.stop()

    async def commit(self, manifest: Manifest, decided_at_ms: int, leap_max: int) -> Decision:
        """Decide a batch. A decision is published even if the caller disconnects.

        Raises what `check_leap` and `check_parts` raise. StoreUnavailableError: it may be decided.
        """

        def decide(store: MetadataStore) -> Decision:
            self._catch_up(store)
            self._may_lack_one = True
            decision = store.transactions.commit(manifest, decided_at_ms, leap_max)
            if not decision.is_replay and decision.txn is not None:
                self._pass_on(decision.txn)
            self._may_lack_one = False
            return decision

        try:
            async with self._hold.passing():
                return await self._store.run(decide)
        except StoreUnavailableError:
            if self._catching_up is None or self._catching_up.done():
                self._catching_up = self._start_task(self._catch_up_soon())
            raise

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Make no decision in the body, and publish all earlier decisions before it.

        A decision that an error hid may still be in the store: look there. Waits without end.
        """
        async with self._hold.held():
            await self.open_decisions.wait_all()
            yield

    def _pass_on(self, txn: TxnRecord) -> None:
        """Let a decision be published; for the thread of the store, which makes them in order."""
        self._last_number = txn.txn_number
        self._loop.call_soon_threadsafe(self.add, txn)

    def _catch_up(self, store: MetadataStore) -> None:
        """Pass on the decisions that an error hid, before any other is made.

        The connection to the database may be lost when a decision is stored and not answered. The
        same placement driver leads on, and a retry of the batch is a replay.
        """
        if not self._may_lack_one:
            return
        for txn in store.transactions.unpublished():
            if txn.txn_number > self._last_number:
                self._pass_on(txn)
        self._may_lack_one = False

    async def _catch_up_soon(self) -> None:
        """Catch up when the store is available again, even if the client has disconnected."""
        while self._may_lack_one:
            try:
                await self._store.run(self._catch_up)
            except SbpError as error:
                _LOG.debug("unpublished decisions not read: %s", error)
                await asyncio.sleep(limits.RETRY_BACKOFF_MS_MAX / 1000)

    def add(self, txn: TxnRecord) -> None:
        """Publish a decision; they have to come in their order."""
        publications = publications_of(txn.txn_number, txn.parts)
        if self._is_stopped or not publications:
            return
        self.open_decisions.add(txn)
        for each in publications:
            queue = self._queues.setdefault(each.stream_id, deque())
            queue.append(_Pending(each))
            if len(queue) == 1:
                self._start_task(self._publish_all(each.stream_id, queue))

    def _start_task(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def give_up(self, txn: TxnRecord, timeout_ms: float) -> dict[int, Reason]:
        """Give up what a decision has in the streams whose range servers have lost some of it.

        Return why the other parts are not given up, by stream: they are published if possible.
        """
        stream_ids = dict.fromkeys(part.stream_id for part in txn.parts)
        reasons = await asyncio.gather(
            *(self._give_up_in(txn.txn_number, each, timeout_ms) for each in stream_ids)
        )
        return {
            stream_id: reason
            for stream_id, reason in zip(stream_ids, reasons, strict=True)
            if reason is not None
        }

    def stuck_numbers(self) -> set[int]:
        """Return the decisions that cannot be published as they were committed, so far."""
        pending = (each for queue in self._queues.values() for each in queue)
        return {each.publication.txn_number for each in pending if each.is_stuck}

    async def _publish_all(self, stream_id: int, queue: deque[_Pending]) -> None:
        while queue:
            await self._publish(queue[0])
            queue.popleft()
        del self._queues[stream_id]

    async def _give_up_in(
        self, txn_number: int, stream_id: int, timeout_ms: float
    ) -> Reason | None:
        if self._is_stopped:
            return STOPPING
        for position, each in enumerate(self._queues.get(stream_id, ())):
            if each.publication.txn_number == txn_number:
                return EARLIER_FIRST if position else await each.requests.ask(timeout_ms)
        return None

    async def _publish(self, pending: _Pending) -> None:
        """Publish or give up the first of a stream's publications."""
        loop = asyncio.get_running_loop()
        failure_count, logged_at = 0, -limits.STUCK_LOG_INTERVAL_MS / 1000
        while pending.publication.state is not PublicationState.SETTLED:
            error: Exception | None
            try:
                error = await self._step(pending)
            except Exception as failure:  # noqa: BLE001 - a decision is always retried
                error = failure
            if error is None:
                continue
            pending.requests.answer(error)
            if loop.time() - logged_at >= limits.STUCK_LOG_INTERVAL_MS / 1000:
                logged_at = loop.time()
                _log(pending.publication, error)
            wait_ms = limits.RETRY_BACKOFF_MS * 2 ** min(failure_count, 16)
            await pending.requests.pause(min(wait_ms, limits.RETRY_BACKOFF_MS_MAX) / 1000)
            failure_count += 1
        pending.requests.answer(None)

    async def _step(self, pending: _Pending) -> SbpError | None:
        """Do the next step of a publication; return or raise why to wait before another."""
        publication = pending.publication
        error = None
        learned: PublicationInput | None
        if publication.state is PublicationState.PUBLISHED:
            self.open_decisions.note_done(*pending.key)
            await self._recorder.submit(pending.key)
            self._servers.drop(publication.leftovers)
            learned = PublicationInput.RECORDED
        elif (
            route := await self._servers.maybe_route(publication.stream_id, publication.range_index)
        ) is None:
            self.open_decisions.note_done(*pending.key)
            learned = PublicationInput.STREAM_DELETED
        elif publication.state is PublicationState.MOVING:
            if route.is_last:  # finish a seal that was cut short
                (result,) = await self._sealer.seal(
                    [RangeId(publication.stream_id, publication.range_index)]
                )
                check_status(result.status)
            learned = PublicationInput.MOVED
        else:
            error = await self._ask(publication, route)
            learned = publication.maybe_learned(error)
        if learned is not None:
            pending.publication = publication.after(learned)
        if pending.publication.state is PublicationState.STUCK:
            pending.is_stuck = True
        if learned is PublicationInput.INCOMPLETE and await self._give_up(pending):
            return None
        return error if learned in _PAUSING else None

    async def _ask(self, publication: Publication, route: Route) -> SbpError | None:
        """Send the next request to the range servers; return why they refuse it."""
        if publication.state in _ASKING:
            return await self._servers.publish(publication, route)
        try:
            await self._servers.copy_earlier(publication, route)
        except SbpError as error:
            return error
        return None

    async def _give_up(self, pending: _Pending) -> bool:
        """Give up a publication whose records are lost, if that was requested."""
        stuck, key = pending.publication, pending.key
        with pending.requests.granting() as is_asked:
            if is_asked:
                now_ms = self._clock.wall_ms()
                txn = await self._store.run(lambda store: store.transactions.give_up(*key, now_ms))
                pending.publication = stuck.after(PublicationInput.GIVEN_UP)
                _LOG.error(
                    "records given up batch=%d producer=%s records=%d stream=%d: their range"
                    " server lost them; the stream continues without them",
                    *(txn.batch_number, txn.producer, stuck.record_count, stuck.stream_id),
                )
                self.open_decisions.note_done(*key, txn.given_up)
                self._servers.drop(stuck.remains)
        return is_asked

    async def _record(self, published: Sequence[tuple[int, int]]) -> list[None]:
        await self._store.run(lambda store: store.transactions.record_published(published))
        return [None] * len(published)


def _log(publication: Publication, error: Exception) -> None:
    is_stuck = publication.state is PublicationState.STUCK
    _LOG.log(
        logging.ERROR if is_stuck else logging.WARNING,
        "decision not published decision=%d stream=%d stuck=%s: %s; retrying",
        *(publication.txn_number, publication.stream_id, is_stuck, error),
        exc_info=None if isinstance(error, SbpError) else error,
    )
