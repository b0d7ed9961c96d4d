"""Publishing committed batches: in each stream one decision after the other.

The streams of a decision are published at the same time. In one stream, END_TXN of a decision is
sent only after the store has recorded that the decision before it is published there. A failure is
retried, also after a restart. Only records that a range server reports as lost are given up, and
only on request: `GiveUpWishes` has these requests. Only the range server knows whether something
can still be published, so a request waits for the next answer of the server.

Read `publications.py` first: the states and inputs of one publication.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from sbp_core import limits
from sbp_core.errors import (
    RequestTimeoutError,
    SbpError,
    ShuttingDownError,
    StoreUnavailableError,
)
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.streams.sealing import Sealer
from sbp_core.pd.txns.ending import Combiner, RangeServers, Route
from sbp_core.pd.txns.hold import Hold
from sbp_core.pd.txns.publications import (
    Publication,
    PublicationInput,
    PublicationState,
    publications_of,
)
from sbp_core.pd.txns.transactions import Decision, Manifest, Part, TxnRecord
from sbp_core.server.runtime import Clock, cancel_all
from sbp_core.wire.headers import RangeId
from sbp_core.wire.status import check_status

_LOG: Final = logging.getLogger(__name__)

_ASKING: Final = {
    PublicationState.ENDING,
    PublicationState.COPIED,
    PublicationState.STUCK,
}
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


class _Open:
    """A decision that is not published yet in some streams."""

    def __init__(self, txn: TxnRecord) -> None:
        self.hidden_in = {part.stream_id for part in txn.parts}
        self.given_up = txn.given_up
        self.decided_at_ms = txn.decided_at_ms
        self.is_over = asyncio.Event()


class OpenDecisions:
    """The decisions that are not yet published, or given up, in all their streams."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._is_stopped = False
        self._are_over = asyncio.Event()
        self._are_over.set()

    def add(self, txn: TxnRecord) -> None:
        """Add a decision that is to be published."""
        self._open[txn.txn_number] = _Open(txn)
        self._are_over.clear()

    async def wait_all(self) -> None:
        """Wait until all are published, or given up."""
        await self._are_over.wait()

    def count(self) -> tuple[int, int | None]:
        """Return how many there are, and when the oldest was decided, in ms since the epoch."""
        oldest_ms = min((each.decided_at_ms for each in self._open.values()), default=None)
        return len(self._open), oldest_ms

    def stop(self) -> None:
        """End all calls of `wait`."""
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

    def note_given_up(self, txn: TxnRecord) -> None:
        """Note what was given up of a decision so far."""
        if txn.txn_number in self._open:
            self._open[txn.txn_number].given_up = txn.given_up

    def note_done(self, txn_number: int, stream_id: int) -> None:
        """Note that a decision is published, or given up, in a stream."""
        decision = self._open.get(txn_number)
        if decision is None:
            return
        decision.hidden_in.discard(stream_id)
        if not decision.hidden_in:
            decision.is_over.set()
            del self._open[txn_number]
            if not self._open:
                self._are_over.set()


@dataclass(slots=True)
class _Wish:
    """A request to give a publication up: its answer, and how many calls wait for it."""

    answer: asyncio.Future[Exception | None]
    waiter_count: int = 0


class GiveUpWishes:
    """Requests to give publications up, and the pauses between retries, which they end."""

    def __init__(self) -> None:
        self._wishes: dict[PublicationKey, _Wish] = {}
        self._pauses: dict[PublicationKey, asyncio.Event] = {}

    async def wish(self, key: PublicationKey, timeout_ms: float) -> Exception | None:
        """Return why a publication is not given up; None if it is, or is published.

        UNANSWERED if the server does not answer in time. A request ends with its last waiting call.
        """
        wish = self._wishes.setdefault(key, _Wish(asyncio.get_running_loop().create_future()))
        wish.waiter_count += 1
        if key in self._pauses:
            self._pauses[key].set()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await asyncio.shield(wish.answer)
        except TimeoutError:
            return UNANSWERED
        finally:
            wish.waiter_count -= 1
            if not wish.waiter_count and self._wishes.get(key) is wish:
                del self._wishes[key]

    @contextmanager
    def granting(self, key: PublicationKey) -> Iterator[bool]:
        """Whether a publication is to be given up: the body does that, or raises why it cannot.

        The calls that wait for it get the outcome afterwards.
        """
        wish = self._wishes.pop(key, None)
        reason: Exception | None = STOPPING
        try:
            yield wish is not None
        except Exception as error:
            reason = error
            raise
        else:
            reason = None
        finally:
            if wish is not None:
                wish.answer.set_result(reason)

    def answer(self, key: PublicationKey, reason: Exception | None) -> None:
        """Answer the calls that wait: why a publication is not given up, None if it need not be."""
        wish = self._wishes.pop(key, None)
        if wish is not None:
            wish.answer.set_result(reason)

    def stop(self) -> None:
        """Answer all calls that nothing is given up now."""
        for key in list(self._wishes):
            self.answer(key, STOPPING)

    async def pause(self, key: PublicationKey, seconds: float) -> None:
        """Wait, at most until the publication is to be given up."""
        is_wished = self._pauses.setdefault(key, asyncio.Event())
        try:
            async with asyncio.timeout(seconds):
                await is_wished.wait()
        except TimeoutError:
            pass
        finally:
            del self._pauses[key]


class Publisher:
    """Publishes what was committed, in the background."""

    def __init__(
        self, store: StoreThread, servers: RangeServers, sealer: Sealer, clock: Clock
    ) -> None:
        self._store = store
        self._servers = servers
        self._sealer = sealer
        self._clock = clock
        self._queues: dict[int, deque[Publication]] = {}
        self._open = OpenDecisions()
        self._stuck: set[PublicationKey] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._recorder = Combiner(self._record, limits.STREAMS_PER_REQUEST_MAX)
        self._wishes = GiveUpWishes()
        self._is_stopped = False
        self._loop: asyncio.AbstractEventLoop
        self._last_number = -1
        """That of the last decision that was passed on to be published."""
        self._may_lack_one = True
        """Whether a decision may be in the store that was not passed on: an error hid it."""
        self._catching_up: asyncio.Task[None] | None = None
        self._hold = Hold()

    async def start(self) -> None:
        """Continue with what was not published when the last placement driver ended."""
        self._loop = asyncio.get_running_loop()
        await self._store.run(self._catch_up)

    async def stop(self) -> None:
        """Leave the rest to the next start; all waiting calls end."""
        self._is_stopped = True
        self._open.stop()
        self._wishes.stop()
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
                self._catching_up = asyncio.create_task(self._catch_up_soon())
                self._tasks.add(self._catching_up)
                self._catching_up.add_done_callback(self._tasks.discard)
            raise

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Make no decision in the body, and publish before it what was decided.

        A decision that an error hid may still be in the store: look there. Waits without end.
        """
        async with self._hold.held():
            await self._open.wait_all()
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
        """Do so when the store is available again, also if its caller has left."""
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
        self._open.add(txn)
        for each in publications:
            queue = self._queues.setdefault(each.stream_id, deque())
            queue.append(each)
            if len(queue) == 1:
                task = asyncio.create_task(self._publish_all(each.stream_id, queue))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def wait_published(self, txn: TxnRecord, timeout_ms: float) -> Progress:
        """Wait until a decision is visible, or given up, in all its streams, but not for longer."""
        return await self._open.wait(txn, timeout_ms)

    async def give_up(self, txn: TxnRecord, timeout_ms: float) -> dict[int, Reason]:
        """Give up what a decision has in the streams whose range servers have lost some of it.

        Return why the rest is not given up, by stream: parts that can be published are published.
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

    def open_decisions(self) -> tuple[int, int | None]:
        """Return how many decisions are being published, and when the oldest was made, in ms."""
        return self._open.count()

    def stuck_numbers(self) -> set[int]:
        """Return the decisions that cannot be published as they were committed, so far."""
        return {txn_number for txn_number, _ in self._stuck}

    async def _publish_all(self, stream_id: int, queue: deque[Publication]) -> None:
        while queue:
            await self._publish(queue)
            queue.popleft()
        del self._queues[stream_id]

    async def _give_up_in(
        self, txn_number: int, stream_id: int, timeout_ms: float
    ) -> Reason | None:
        if self._is_stopped:
            return STOPPING
        waiting = [each.txn_number for each in self._queues.get(stream_id, ())]
        if txn_number not in waiting:
            return None
        if txn_number != waiting[0]:
            return EARLIER_FIRST
        return await self._wishes.wish((txn_number, stream_id), timeout_ms)

    async def _publish(self, queue: deque[Publication]) -> None:
        """Publish or give up the first of a stream's publications."""
        loop = asyncio.get_running_loop()
        key = (queue[0].txn_number, queue[0].stream_id)
        failure_count, logged_at = 0, -limits.STUCK_LOG_INTERVAL_MS / 1000
        while queue[0].state is not PublicationState.SETTLED:
            error: Exception | None
            try:
                error = await self._step(queue)
            except Exception as failure:  # noqa: BLE001 - a decision is always retried
                error = failure
            if error is None:
                continue
            self._wishes.answer(key, error)
            if loop.time() - logged_at >= limits.STUCK_LOG_INTERVAL_MS / 1000:
                logged_at = loop.time()
                _log(queue[0], error)
            wait_ms = limits.RETRY_BACKOFF_MS * 2 ** min(failure_count, 16)
            await self._wishes.pause(key, min(wait_ms, limits.RETRY_BACKOFF_MS_MAX) / 1000)
            failure_count += 1
        self._stuck.discard(key)
        self._wishes.answer(key, None)

    async def _step(self, queue: deque[Publication]) -> SbpError | None:
        """Do the first publication's next step; return or raise why to wait before another."""
        publication = queue[0]
        if publication.state is PublicationState.PUBLISHED:
            await self._settle(publication)
            queue[0] = publication.after(PublicationInput.RECORDED)
            return None
        route = await self._servers.maybe_route(publication.stream_id, publication.range_index)
        if route is None:
            self._open.note_done(publication.txn_number, publication.stream_id)
            queue[0] = publication.after(PublicationInput.STREAM_DELETED)
            return None
        if publication.state is PublicationState.MOVING:
            await self._find_next(publication, route)
            queue[0] = publication.after(PublicationInput.MOVED)
            return None
        error = await self._ask(publication, route)
        learned = publication.maybe_learned(error)
        if learned is not None:
            queue[0] = publication.after(learned)
        if queue[0].state is PublicationState.STUCK:
            self._stuck.add((publication.txn_number, publication.stream_id))
        if learned is PublicationInput.INCOMPLETE and await self._give_up(queue):
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

    async def _give_up(self, queue: deque[Publication]) -> bool:
        """Give up the first publication, whose records are lost, if that was requested."""
        stuck = queue[0]
        key = (stuck.txn_number, stuck.stream_id)
        with self._wishes.granting(key) as is_wished:
            if is_wished:
                now_ms = self._clock.wall_ms()
                txn = await self._store.run(lambda store: store.transactions.give_up(*key, now_ms))
                queue[0] = stuck.after(PublicationInput.GIVEN_UP)
                _LOG.error(
                    "records given up batch=%d producer=%s records=%d stream=%d: their range"
                    " server lost them; the stream continues without them",
                    txn.batch_number,
                    txn.producer,
                    stuck.record_count,
                    stuck.stream_id,
                )
                self._open.note_given_up(txn)
                self._open.note_done(*key)
                self._servers.drop(stuck.remains)
        return is_wished

    async def _find_next(self, publication: Publication, route: Route) -> None:
        """Make sure that there is a range after a sealed one: finish a seal that was cut short."""
        if route.is_last:
            (result,) = await self._sealer.seal(
                [RangeId(publication.stream_id, publication.range_index)]
            )
            check_status(result.status)

    async def _settle(self, publication: Publication) -> None:
        key = (publication.txn_number, publication.stream_id)
        self._open.note_done(*key)
        await self._recorder.submit(key)
        self._servers.drop(publication.leftovers)

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
