"""Appending record batches (SPEC "APPEND"): `append`, and the appender. Read `_Delivery.run` first.

Order: the batches of one stream are appended in the order given. Batches of a writer or transaction
have numbers that keep this order, so several frames of a stream are in flight; without numbers one
frame is. A failed batch is retried once all sent frames are answered, and, without numbers, only
while no later batch of its stream was appended. After a final failure the later batches of the
stream are given up, too.

The batches of a writer may be retried whatever their outcome. A server knows the offsets of the
last WRITER_BATCHES_KEPT batches, so at most that many batches of a stream are in flight. A
transaction numbers its batches in each range, so the batches of a stream go to one range at a time.

If the primary of a replicated range is lost, the placement driver is asked to seal the range, and
the append goes on in the next range by the same rules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final, Self

from sbp_core import limits
from sbp_core.client.operations.append_state import AppendFrame, AppendState
from sbp_core.client.operations.calls import Attempts, Context
from sbp_core.client.operations.numbering import Transaction, Writer, begin_numbering
from sbp_core.client.operations.open_calls import Calls, Reply, pause
from sbp_core.client.operations.range_placement import locate
from sbp_core.client.operations.stream_bounds import ended, unanswered_at_end
from sbp_core.client.operations.stream_changes import seal_ranges
from sbp_core.client.types import AppendItem, AppendOutcome, RangeInfo
from sbp_core.errors import ConfigurationError, SbpError, ThrottledError
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import RangeId, SealCause

_LOG: Final = logging.getLogger("sbp_core.client")


@dataclass(frozen=True, slots=True)
class AppendKind:
    """How the batches of an append are numbered, if at all, and which are retried.

    `retry_unknown` retries batches that may be appended already (at least once, not at most once).
    A `writer` retries them as well, and each batch is appended once. A `transaction` retries them
    and stages each batch once. Servers without the extension raise UnsupportedError. Raises
    ConfigurationError for a writer together with a transaction.
    """

    retry_unknown: bool = False
    writer: Writer | None = None
    transaction: Transaction | None = None

    def __post_init__(self) -> None:
        if self.writer is not None and self.transaction is not None:
            raise ConfigurationError(
                "a transaction numbers its batches itself: append without writer"
            )

    @property
    def is_repeatable(self) -> bool:
        """Whether batches that may be appended already are sent again."""
        is_numbered = self.writer is not None or self.transaction is not None
        return self.retry_unknown or is_numbered

    @contextmanager
    def begin(self, context: Context) -> Iterator[AppendState]:
        """Yield the state of a new append. The append ends with the body of the `with` statement.

        A body that raises leaves the append incomplete.
        """
        numbering = begin_numbering(self.writer, self.transaction)
        state = AppendState(context, numbering)
        is_complete = False
        try:
            yield state
            is_complete = not state.given_up
        finally:
            numbering.end(state.in_doubt, is_complete=is_complete)


async def append(
    context: Context, items: Sequence[AppendItem], kind: AppendKind
) -> list[AppendOutcome]:
    """Append all batches; return the outcome of each, in the order of `items`.

    Staged batches have the base offset -1. Raises ConfigurationError for an unusable batch, before
    anything is sent; otherwise the error of the first failed item, once all items are settled. The
    `outcome` of the error is of the whole call, and of earlier calls that left its batches in
    doubt: NOT_APPLIED only if nothing was appended.
    """
    with kind.begin(context) as state, context.open_calls() as calls:
        state.add(items)
        await _Delivery(context, calls, state, is_repeatable=kind.is_repeatable).run()
        state.check()
    return [state.outcomes[index] for index in range(len(items))]


OnAppended = Callable[[int, AppendOutcome], None]
"""Gets the number of a batch, and where it was appended."""

OnFailed = Callable[[int, SbpError], None]
"""Gets the id of a stream, and why its batches are given up."""


@dataclass(slots=True)
class _Sent:
    """A frame in flight, and its answers so far.

    If no answer arrives before `doubt_ms`, the placement driver is asked about the ranges.
    """

    frame: AppendFrame
    doubt_ms: float
    answers: list[Frame] = field(default_factory=list)

    @property
    def replicated(self) -> list[RangeInfo]:
        """The ranges of the frame that go on at other servers if this server is lost."""
        return [each for each in self.frame.pieces if each.is_open_and_replicated]


class _Delivery:
    """Sends the batches of an append, and receives the answers."""

    def __init__(
        self, context: Context, calls: Calls, state: AppendState, *, is_repeatable: bool
    ) -> None:
        self._context = context
        self._calls = calls
        self._state = state
        self._is_repeatable = is_repeatable
        self._sent: dict[int, _Sent] = {}
        """The frames in flight by the numbers of their calls."""
        self._attempts: Attempts | None = None

    async def run(self, *, until_answered: bool = True) -> None:
        """Send all batches; return then, or, `until_answered`, when all are answered.

        The state has the failures.
        """
        state = self._state
        now_ms = self._context.now_ms()
        if self._attempts is None:
            self._attempts = Attempts(self._context, now_ms)
        elif not state.has_trouble:
            self._attempts.on_progress(now_ms)
        attempts = self._attempts
        while True:
            unsent = state.unsent
            if unsent and not state.has_trouble and (await self._send(unsent)):
                continue
            if self._sent and (unsent or state.has_trouble or state.failures or until_answered):
                await self._receive(attempts)
            elif state.has_trouble:
                await self._settle(attempts)
            elif not unsent:
                break

    async def _send(self, unsent: Sequence[int]) -> bool:
        """Send the next frames; return whether there were any."""
        errors = await locate(self._context, self._state.stream_ids(unsent))
        if await self._replace_lost():
            errors = await locate(self._context, self._state.stream_ids(unsent))
        now_ms = self._context.now_ms()
        frames = self._state.build_frames(errors, self._busy_servers(), now_ms)
        for frame, call in zip(frames, self._state.on_sent(frames), strict=True):
            self._sent[await self._calls.start(call)] = _Sent(
                frame, now_ms + limits.PRIMARY_PATIENCE_MS
            )
        return bool(frames)

    async def _replace_lost(self) -> bool:
        """Ask to seal ranges whose primaries may have failed; return whether any was asked for."""
        return await self._ask_about(self._state.take_suspects())

    async def _ask_about(self, suspects: Sequence[tuple[RangeInfo, SbpError]]) -> bool:
        """Ask the placement driver to check primaries; return whether it was asked.

        The placement driver checks primaries itself, but may not have noticed a failure yet (SPEC
        "SEAL_RANGE"). One request for a range is enough for all appends of a client.
        """
        context = self._context
        now_ms = self._context.now_ms()
        lost: list[RangeId] = []
        for piece, error in suspects:
            pause_ms = limits.PRIMARY_PATIENCE_MS * context.random.uniform(1, 2)
            if context.replicas.may_ask_seal(piece, now_ms, pause_ms):
                lost.append(RangeId(piece.stream_id, piece.range_index))
                _LOG.info(
                    "primary in doubt: server=%s stream=%d range=%d cause=%s; the placement driver"
                    " is asked to look at it",
                    *(piece.servers[0], piece.stream_id, piece.range_index, error),
                )
        if not lost:
            return False
        impatient = context.impatient(limits.REPLICA_TIMEOUT_MS)
        try:
            _, failures = await seal_ranges(impatient, lost, SealCause.PRIMARY_SILENT)
        except SbpError as error:
            failures = [error]
        for failure in failures:
            is_fine = isinstance(failure, ThrottledError)  # the primary answers there
            level = logging.INFO if is_fine else logging.WARNING
            _LOG.log(level, "stream not continued yet: cause=%s", failure)
        return True

    async def _doubt(self) -> None:
        """Ask about silent primaries; give up frames whose range has ended, to send them again.

        Only repeatable batches are sent again: the silent primary may already have appended them.
        """
        now_ms = self._context.now_ms()
        silent = {number: each for number, each in self._sent.items() if each.doubt_ms <= now_ms}
        pieces = {each.stream_id: each for sent in silent.values() for each in sent.replicated}
        errors: dict[int, SbpError] = {
            each.stream_id: unanswered_at_end(each.servers[0]) for each in pieces.values()
        }
        await self._ask_about([(each, errors[each.stream_id]) for each in pieces.values()])
        over = await ended(self._context, pieces.values())
        now_ms = self._context.now_ms()
        for number, sent in silent.items():
            sent.doubt_ms = now_ms + limits.PRIMARY_PATIENCE_MS
            lost = [each for each in sent.replicated if each.stream_id in over]
            if lost and self._is_repeatable:
                del self._sent[number]
                self._calls.abandon(number)
                error = errors[lost[0].stream_id]
                # The next frame asks another replica whether it has the batches.
                self._context.replicas.on_failure(lost[0], sent.frame.endpoint, error, now_ms)
                self._state.on_reply(sent.frame, Reply(tuple(sent.answers), error))

    def _busy_servers(self) -> set[str]:
        """Return the servers with the allowed number of frames or bytes in flight."""
        counts: dict[str, tuple[int, int]] = {}
        for sent in self._sent.values():
            count, size_bytes = counts.get(sent.frame.endpoint, (0, 0))
            counts[sent.frame.endpoint] = count + 1, size_bytes + sent.frame.frame_bytes
        return {
            server
            for server, (count, size_bytes) in counts.items()
            if self._state.is_throttled
            or count >= limits.APPENDS_ON_WAY_MAX
            or size_bytes >= limits.APPENDS_ON_WAY_BYTES
        }

    async def _receive(self, attempts: Attempts) -> None:
        """Wait for an answer to one of the frames in flight."""
        times = [each.doubt_ms for each in self._sent.values() if each.replicated]
        arrival = await self._calls.receive(self._sent, min(times, default=None))
        if arrival is None:
            await self._doubt()
            return
        sent = self._sent[arrival.number]
        failure = None
        if isinstance(arrival.content, SbpError):
            failure = arrival.content
        else:
            sent.answers.append(arrival.content)
        if not arrival.is_last:
            return
        del self._sent[arrival.number]
        before_count = self._state.appended_count
        self._state.on_reply(sent.frame, Reply(tuple(sent.answers), failure))
        if self._state.appended_count > before_count:
            now_ms = self._context.now_ms()
            attempts.on_progress(now_ms)

    async def _settle(self, attempts: Attempts) -> None:
        now_ms = self._context.now_ms()
        wait_ms = self._state.settle(attempts, now_ms, is_repeatable=self._is_repeatable)
        if wait_ms:
            await pause(self._context.open_calls, wait_ms)


class AsyncAppender:
    """Appends batches one group after the other, as `Appender` does, for one asyncio task.

    Made by `AsyncClient.appender`; use it with `async with`, and await `append` and `finish`.
    """

    def __init__(
        self,
        context: Context,
        kind: AppendKind,
        on_appended: OnAppended | None = None,
        on_failed: OnFailed | None = None,
    ) -> None:
        self._context = context
        self._kind = kind
        self._on_appended = on_appended
        self._on_failed = on_failed
        self._begun: tuple[AppendState, _Delivery] | None = None
        self._open = ExitStack()
        """Holds the state and the calls until the appender is over."""
        self._is_over = False

    @property
    def unacknowledged(self) -> list[AppendItem]:
        """The batches from the first one of each stream on that is not known to be appended."""
        return [] if self._begun is None else self._begun[0].unacknowledged

    async def append(self, items: Sequence[AppendItem]) -> None:
        """Send batches; return when all are sent, and most are answered. Raises SbpError."""
        with self._step() as (state, delivery):
            state.add(items)
            await delivery.run(until_answered=not items)

    async def flush(self) -> None:
        """Return when all batches are appended; more batches may follow. Raises SbpError."""
        await self.append(())

    async def finish(self) -> None:
        """Return when all batches are appended, and end the appender. Raises SbpError."""
        with self._step() as (_, delivery):
            await delivery.run()
        self._is_over = True
        self._open.close()

    async def close(self) -> None:
        """Give up the batches that are not appended. Idempotent."""
        self._is_over = True
        self._end(GeneratorExit())

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _begin(self) -> tuple[AppendState, _Delivery]:
        if self._begun is None:
            context, kind = self._context, self._kind
            state = self._open.enter_context(kind.begin(context))
            calls = self._open.enter_context(context.open_calls())
            delivery = _Delivery(context, calls, state, is_repeatable=kind.is_repeatable)
            self._begun = state, delivery
        return self._begun

    @contextmanager
    def _step(self) -> Iterator[tuple[AppendState, _Delivery]]:
        """Report the batches that the body has delivered. An error ends the appender."""
        if self._is_over:
            raise ConfigurationError(
                "this appender is over: it was finished or closed, or raised an error; begin"
                " another one"
            )
        self._is_over = True
        try:
            state, delivery = self._begin()
            try:
                yield state, delivery
            finally:
                self._report(state.outcomes)
            self._give_up(state)
        except BaseException as error:
            self._end(error)
            raise
        self._is_over = False

    def _end(self, error: BaseException) -> None:
        """Leave the append incomplete."""
        self._open.__exit__(type(error), error, error.__traceback__)

    def _report(self, outcomes: dict[int, AppendOutcome]) -> None:
        if self._on_appended is not None:
            for index in list(outcomes):
                self._on_appended(index, outcomes.pop(index))
        outcomes.clear()

    def _give_up(self, state: AppendState) -> None:
        if self._on_failed is None:
            state.check()
            return
        for stream_id, error in state.give_up_failed().items():
            self._on_failed(stream_id, error)
