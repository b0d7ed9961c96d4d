"""The operation that fetches record batches (SPEC "FETCH").

Every item is answered exactly once, as soon as its answer arrives. A frame to a server has many
items; answers come in any order and in any number of frames. An item at the end of a sealed or
moved range goes on in the next range. If a server fails, an item of a sealed range is asked of
another replica; for an item of an open range the placement is looked up again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from sbp_core import limits
from sbp_core.client.operations.calls import Attempts, Context, unanswered
from sbp_core.client.operations.fetch_answer import FetchTask, bounded_selections, read_answer
from sbp_core.client.operations.open_calls import Arrival, Call, Calls
from sbp_core.client.operations.range_placement import (
    chunks,
    endless,
    locate,
    no_server,
    revalidate,
)
from sbp_core.client.operations.stream_bounds import ended, stream_bounds, unanswered_at_end
from sbp_core.client.types import EARLIEST, FetchItem, FetchOutcome, RangeInfo, ReceivedBatches
from sbp_core.errors import (
    ConfigurationError,
    OffsetOutOfRangeError,
    RangeNotFoundError,
    SbpError,
    StatusCode,
)
from sbp_core.record_sizes import LARGEST
from sbp_core.wire.headers import FetchRequest
from sbp_core.wire.opcodes import Opcode

_WAIT_DOUBTED_MS: Final = 5_000
"""The wait for records that counts: behind it a silent server is in doubt."""


@dataclass(slots=True)
class _OpenFetch:
    """A FETCH frame that waits for answers: its tasks by request index.

    If no answer arrives before `doubt_ms`, the client looks up whether the ranges are still open.
    """

    endpoint: str
    tasks: dict[int, FetchTask]
    doubt_ms: float

    @property
    def replicated(self) -> list[RangeInfo]:
        """The open ranges that go on at other servers if this server is lost."""
        pieces = (task.piece for task in self.tasks.values())
        return [each for each in pieces if each is not None and each.is_open_and_replicated]


async def fetch(
    context: Context, items: Sequence[FetchItem], *, max_wait_ms: int, min_bytes: int
) -> AsyncGenerator[FetchOutcome]:
    """Fetch all items, yielding a FetchOutcome for each as it is answered.

    A server waits up to `max_wait_ms` for `min_bytes` of an item. Failures are outcomes with an
    error. Raises ConfigurationError for unusable arguments.
    """
    _check_arguments(items, max_wait_ms, min_bytes)
    begin_ms = context.now_ms()
    with context.open_calls() as calls:
        work = _Fetch(context, calls, begin_ms + max_wait_ms, min_bytes)
        for index, item in enumerate(items):
            attempts = Attempts(context, begin_ms + max_wait_ms)
            task = FetchTask(index, item, item.fetch_offset, attempts, begin_ms)
            if item.end_offset is not None and 0 <= item.end_offset <= item.fetch_offset:
                yield task.empty(item.fetch_offset)
            else:
                work.waiting.append(task)
        async with aclosing(work.run()) as outcomes:
            async for outcome in outcomes:
                yield outcome


class _Fetch:
    """The tasks of one fetch, and the calls that are open for them."""

    def __init__(
        self, context: Context, calls: Calls, wait_until_ms: float, min_bytes: int
    ) -> None:
        self.waiting: list[FetchTask] = []
        self._context = context
        self._calls = calls
        self._found: list[FetchOutcome] = []
        """The outcomes that are known and not yielded yet."""
        self._impatient = context.impatient()
        self._wait_until_ms = wait_until_ms
        self._min_bytes = min_bytes
        self._open: dict[int, _OpenFetch] = {}

    async def run(self) -> AsyncGenerator[FetchOutcome]:
        """Ask, receive, ask again, until every task is answered; yield the outcomes."""
        while self.waiting or self._open or self._found:
            if self._found:
                found, self._found = self._found, []
                for each in found:
                    yield each
                continue
            now_ms = self._context.now_ms()
            due = [task for task in self.waiting if task.due_ms <= now_ms]
            if due:
                self.waiting = [task for task in self.waiting if task.due_ms > now_ms]
                await self._ask(due)
                continue
            times = [task.due_ms for task in self.waiting]
            times += [each.doubt_ms for each in self._open.values() if each.replicated]
            arrival = await self._calls.receive(self._open, min(times, default=None))
            if arrival is not None:
                await self._on_arrival(arrival)
            else:
                await self._doubt()

    async def _doubt(self) -> None:
        """Ask other servers for the items of silent servers whose ranges have ended."""
        now_ms = self._context.now_ms()
        silent = {
            number: each
            for number, each in self._open.items()
            if each.doubt_ms <= now_ms and each.replicated
        }
        if not silent:
            return
        over = await ended(
            self._context, [piece for each in silent.values() for piece in each.replicated]
        )
        now_ms = self._context.now_ms()
        for number, opened in silent.items():
            opened.doubt_ms = now_ms + limits.PRIMARY_PATIENCE_MS
            lost = [piece for piece in opened.replicated if piece.stream_id in over]
            if lost:
                del self._open[number]
                self._calls.abandon(number)
                silence = unanswered_at_end(opened.endpoint)
                self._context.replicas.on_failure(lost[0], opened.endpoint, silence, now_ms)
                for task in opened.tasks.values():
                    self._wait(task, now_ms)

    async def _ask(self, tasks: Sequence[FetchTask]) -> None:
        """Send tasks to the servers of their ranges, one frame for each server."""
        errors = await locate(self._context, [task.item.stream_id for task in tasks])
        now_ms = self._context.now_ms()
        wait_ms = max(0, round(self._wait_until_ms - now_ms))
        groups: dict[tuple[str, bool], list[FetchTask]] = {}
        for task in tasks:
            error = errors.get(task.item.stream_id)
            piece = self._context.router.maybe_range_at(task.item.stream_id, task.offset)
            if error is None and piece is None:
                known = self._context.router.maybe_ranges(task.item.stream_id) or ()
                error = _out_of_range(task.item.stream_id, task.offset, *_known_bounds(known))
            elif error is None and piece is not None and not piece.servers:
                error = no_server(piece)
            if error is not None or piece is None:
                assert error is not None
                task.piece = None
                self._context.router.forget(task.item.stream_id)
                await self._on_error(task, error, None, now_ms)
                continue
            task.piece, task.asked_ms, task.asked_wait_ms = piece, now_ms, wait_ms
            server, has_others = task.turn.at(self._context.replicas, piece, now_ms)
            # If the primary of an open range is silent, there may be another range by now.
            is_brief = has_others or (piece.is_open_and_replicated and task.attempts.is_first)
            groups.setdefault((server, is_brief), []).append(task)
        for (server, is_brief), whole in groups.items():
            for part in chunks(whole):
                doubt_ms = min(wait_ms, _WAIT_DOUBTED_MS) + limits.PRIMARY_PATIENCE_MS
                opened = _OpenFetch(server, dict(enumerate(part)), now_ms + doubt_ms)
                number = await self._calls.start(self._call(opened, wait_ms, is_brief=is_brief))
                self._open[number] = opened

    def _call(self, opened: _OpenFetch, wait_ms: int, *, is_brief: bool) -> Call:
        """Return the call. A brief call ends early, because another server can be asked then."""
        patience_ms = self._context.timeout_ms
        if is_brief:
            patience_ms = min(patience_ms, limits.REPLICA_TIMEOUT_MS)
        timeout_ms = patience_ms + wait_ms
        header = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=self._min_bytes,
            fetch_requests=tuple(
                bounded_selections(task.info(index) for index, task in opened.tasks.items())
            ),
            timeout_ms=timeout_ms,
        )
        return Call(
            opened.endpoint,
            Opcode.FETCH,
            header,
            timeout_ms,
            answer_bytes_max=LARGEST.frame_bytes
            + sum(each.answer_bytes for each in opened.tasks.values()),
        )

    async def _on_arrival(self, arrival: Arrival) -> None:
        asked = self._open[arrival.number]
        now_ms = self._context.now_ms()
        try:
            if isinstance(arrival.content, SbpError):
                raise arrival.content
            answers = read_answer(
                arrival.content,
                {request_index: task.question() for request_index, task in asked.tasks.items()},
            )
        except SbpError as error:
            del self._open[arrival.number]
            self._calls.abandon(arrival.number)
            for task in asked.tasks.values():
                await self._on_error(task, error, asked.endpoint, now_ms)
            return
        empty: list[tuple[FetchTask, ReceivedBatches]] = []
        for request_index, answer in answers.items():
            task = asked.tasks.pop(request_index)
            if isinstance(answer, SbpError):
                await self._on_error(task, answer, asked.endpoint, now_ms)
                continue
            if task.is_lacking(answer):
                await self._on_error(task, _lacking(task), asked.endpoint, now_ms)
                continue
            if not answer.payload and task.may_go_on(answer.next_offset, now_ms):
                empty.append((task, answer))
            else:
                if not answer.payload and task.piece and task.piece.is_open_and_replicated:
                    # Its primary may have been cut off, and the stream gone on elsewhere.
                    self._context.router.forget(task.item.stream_id)
                task.attempts.on_progress(now_ms)
                self._found.append(task.outcome(answer))
        if arrival.is_last:
            del self._open[arrival.number]
            for task in asked.tasks.values():
                silence = unanswered(f"the fetch of stream {task.item.stream_id}")
                await self._on_error(task, silence, asked.endpoint, now_ms)
        if empty:
            await self._follow(empty, now_ms)

    async def _follow(
        self, empty: Sequence[tuple[FetchTask, ReceivedBatches]], now_ms: float
    ) -> None:
        """Ask in the next range if the stream has one; else answer that there are no records.

        At the end of a sealed range a server answers at once without batches, and the range may
        have been sealed after its placement was looked up. While the placement driver is
        unavailable, the empty answer stands.
        """
        stream_ids = list(dict.fromkeys(task.item.stream_id for task, _ in empty))
        await revalidate(self._impatient, stream_ids)
        for task, answer in empty:
            next_offset = self._skip_trimmed(task, max(task.offset, answer.next_offset))
            piece = self._context.router.maybe_range_at(task.item.stream_id, next_offset)
            if piece and task.piece and piece.range_index > task.piece.range_index:
                task.follow_count += 1
                if task.follow_count > limits.CHANGES_FOLLOWED_MAX:
                    error = endless(f"stream {task.item.stream_id} at offset {next_offset}")
                    self._found.append(task.empty(next_offset, error))
                    continue
                task.offset = next_offset
                self._wait(task, now_ms)
            else:
                self._found.append(task.empty(next_offset))

    def _wait(self, task: FetchTask, due_ms: float) -> None:
        """Ask for a task again at `due_ms`."""
        task.due_ms = due_ms
        self.waiting.append(task)

    def _skip_trimmed(self, task: FetchTask, offset: int) -> int:
        """Return where a fetch goes on: for EARLIEST not before the stream begins."""
        ranges = self._context.router.maybe_ranges(task.item.stream_id)
        if ranges and task.item.fetch_offset == EARLIEST:
            return max(offset, ranges[0].start_offset)
        return offset

    async def _on_error(
        self, task: FetchTask, error: SbpError, endpoint: str | None, now_ms: float
    ) -> None:
        """Ask another replica, or try again later, or answer the task with the error."""
        if endpoint is not None and task.piece is not None:
            replicas = self._context.replicas
            failure = task.turn.after(replicas, task.piece, endpoint, error, now_ms)
            if failure is None:
                self._wait(task, now_ms)
                return
            endpoint, error = failure
        task.attempts.on_failure()
        what = f"FETCH of stream {task.item.stream_id} from offset {task.offset}"
        wait_ms = task.attempts.maybe_wait_ms(error, what, endpoint, now_ms)
        if isinstance(error, OffsetOutOfRangeError) and not task.was_out_of_range:
            # The known placement may be old: look it up once before this error counts.
            task.was_out_of_range = True
            if task.item.fetch_offset == EARLIEST:
                task.offset = EARLIEST
            self._context.router.forget(task.item.stream_id)
            wait_ms = 0
        if wait_ms is None:
            if isinstance(error, OffsetOutOfRangeError):
                error = await self._with_bounds(task, error)
            reason = task.attempts.explain(error, what, endpoint)
            self._found.append(task.empty(task.offset, reason))
            return
        if error.refreshes_placement:
            self._context.router.forget(task.item.stream_id)
        self._wait(task, now_ms + wait_ms)

    async def _with_bounds(self, task: FetchTask, error: SbpError) -> SbpError:
        """Return the error with the bounds of the whole stream, if these can be learned."""
        stream_id = task.item.stream_id
        if task.piece is not None and len(self._context.router.maybe_ranges(stream_id) or ()) == 1:
            return error  # the server of the stream's only range knows the bounds
        try:
            (held,) = await stream_bounds(self._impatient, [stream_id])
        except SbpError:
            return error
        return _out_of_range(stream_id, task.offset, held.start_offset, held.next_offset)


def _out_of_range(
    stream_id: int, offset: int, start_offset: int, next_offset: int
) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        StatusCode.OFFSET_OUT_OF_RANGE,
        f"stream {stream_id} has no offset {offset}; it holds [{start_offset}, {next_offset})",
        OffsetOutOfRangeError.encode_bounds(start_offset, next_offset),
    )


def _lacking(task: FetchTask) -> RangeNotFoundError:
    assert task.piece is not None
    return RangeNotFoundError.of(
        f"the server has nothing at offset {task.offset} of stream {task.item.stream_id}, although"
        f" range {task.piece.range_index} ends at {task.piece.end_offset}"
    )


def _known_bounds(ranges: Sequence[RangeInfo]) -> tuple[int, int]:
    if not ranges:
        return 0, 0
    last = ranges[-1]
    return ranges[0].start_offset, last.next_offset if last.end_offset is None else last.end_offset


def _check_arguments(items: Sequence[FetchItem], max_wait_ms: int, min_bytes: int) -> None:
    if not 0 <= max_wait_ms <= limits.FETCH_WAIT_MS_MAX:
        raise ConfigurationError(
            f"max_wait_ms {max_wait_ms} is not in 0..{limits.FETCH_WAIT_MS_MAX}"
        )
    if not 1 <= min_bytes <= limits.FRAME_BYTES_MAX:
        raise ConfigurationError(f"min_bytes {min_bytes} is not in 1..{limits.FRAME_BYTES_MAX}")
    for index, item in enumerate(items):
        if item.fetch_offset < EARLIEST:
            raise ConfigurationError(
                f"item {index}: fetch_offset {item.fetch_offset} is neither an offset nor"
                " EARLIEST nor LATEST"
            )
        if not 1 <= item.max_bytes < 2**31:
            raise ConfigurationError(f"item {index}: max_bytes {item.max_bytes} is not positive")
