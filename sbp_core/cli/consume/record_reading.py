"""Which parts of which streams are read, reading them, and committing how far a group has come."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from sbp_core.app.aio.assignment import AsyncWholeSelection
from sbp_core.app.aio.consumer import AsyncConsumer
from sbp_core.app.blocking import Consumer, RecordIterator
from sbp_core.app.positions import Selection, Span
from sbp_core.app.record import Batch
from sbp_core.cli.connect import find_reach, find_sizes, parse_stream
from sbp_core.cli.options import check_interval
from sbp_core.cli.output import flush, write_notice
from sbp_core.cli.progress import BYTES, OnProgress, is_shown, progress
from sbp_core.client import Client, Reach
from sbp_core.errors import (
    ConfigurationError,
    DamagedBatchError,
    NotFoundError,
    OffsetOutOfRangeError,
    RecordBatchError,
    SbpError,
)
from sbp_core.operating.stream_position import Position, PositionKind, check_order, find_offset
from sbp_core.wording import counted, listed


@dataclass(frozen=True, slots=True)
class Wanted:
    """The records that are asked for, before any stream is looked at.

    Streams are names, ids, and begins of names followed by `*`. `last` is a number of records
    before the end, which stands in place of `start`. Without `end` that is the tail, or, to
    `follow`, nowhere. In streams that a `group` has cursors in, it starts there.
    """

    streams: tuple[str, ...]
    start: Position
    end: Position | None
    last: int | None
    group: str | None
    is_following: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The streams to read, and the part of each, by id.

    In `open_ended` ones the tail was not known: more has to be read behind their spans.
    """

    selection: Selection
    spans: Mapping[int, Span]
    open_ended: frozenset[int]


def make_plan(client: Client, wanted: Wanted) -> Plan:
    """Return what to read.

    Raises ConfigurationError for an end before the start, NotFoundError, OffsetOutOfRangeError,
    SbpError.
    """
    patterns = [each for each in wanted.streams if "*" in each]
    stream_ids = _find_streams(client, wanted.streams, patterns)
    if patterns and not stream_ids and not wanted.is_following:
        raise NotFoundError.of(f"no stream has a name such as {listed(patterns)}")
    prefixes = Selection.of(patterns).prefixes if patterns and wanted.is_following else frozenset()
    selection = Selection(frozenset(), prefixes, frozenset(stream_ids))
    if not stream_ids:
        return Plan(selection, {}, frozenset())
    reaches = find_reach(client, stream_ids)
    finder = _Finder(client, wanted, reaches)
    spans = {each: finder.span(each) for each in stream_ids}
    if not any(_is_in_order(each) for each in spans.values()):
        first = next(iter(spans.values()))
        check_interval(first.start_offset, first.end_offset or 0)
    open_ended = {
        each
        for each in stream_ids
        if wanted.end is None and finder.reaches[each].next_offset is None
    }
    return Plan(selection, spans, frozenset(open_ended))


def _is_in_order(span: Span) -> bool:
    return span.end_offset is None or span.start_offset <= span.end_offset


def rest_of(client: Client, plan: Plan) -> Plan:
    """Return what is left of the open-ended streams, once their tails are known."""
    ids = plan.open_ended
    spans = {}
    for bounds in client.stream_bounds([*ids]):
        read = plan.spans[bounds.stream_id]
        start = max(read.start_offset, read.end_offset or 0)
        spans[bounds.stream_id] = Span(start, bounds.next_offset)
    return Plan(Selection(frozenset(), frozenset(), ids), spans, frozenset())


def _find_streams(client: Client, texts: Sequence[str], patterns: Sequence[str]) -> list[int]:
    """Return the ids of the streams that are named, or match. Raises NotFoundError."""
    named = list(dict.fromkeys(parse_stream(each) for each in texts if each not in patterns))
    found = client.describe_streams(named) if named else []
    if patterns:
        found += Selection.of(patterns).of_streams(client.list_streams())
    return list(dict.fromkeys(each.stream_id for each in found))


class _Finder:
    """Finds where the parts of streams begin and end."""

    def __init__(self, client: Client, wanted: Wanted, reaches: Mapping[int, Reach]) -> None:
        self._client = client
        self._wanted = wanted
        self.reaches = dict(reaches)
        ids = list(reaches)
        self._cursors = {
            each.stream_id: each.next_offset
            for each in (client.describe_cursors(wanted.group, ids) if wanted.group else ())
        }
        self._at_start = self._look_up(wanted.start)
        self._at_end = self._look_up(wanted.end)

    def span(self, stream_id: int) -> Span:
        """Return the part of a stream."""
        wanted = self._wanted
        cursor = self._cursors.get(stream_id)
        if wanted.end is not None:
            end = self._offset(stream_id, wanted.end, self._at_end)
        else:
            if wanted.last is not None:
                self._learn_tail(stream_id)
            end = self.reaches[stream_id].readable_end
        if cursor is not None:
            start = cursor
        elif wanted.last is not None:
            start = max(end - wanted.last, self.reaches[stream_id].start_offset)
        else:
            start = self._offset(stream_id, wanted.start, self._at_start)
            if wanted.end is None:
                end = self.reaches[stream_id].readable_end  # the tail may be known now
        return Span(start, None if wanted.is_following else end)

    def _offset(self, stream_id: int, position: Position, found: Mapping[int, int]) -> int:
        at = self.reaches[stream_id]
        if position.kind is PositionKind.OFFSET:
            if at.start_offset <= position.number <= at.readable_end:
                return position.number
        elif position.kind in {PositionKind.EARLIEST, PositionKind.TIME}:
            return find_offset(position, at, found.get(stream_id))
        try:
            return find_offset(position, self._learn_tail(stream_id))
        except OffsetOutOfRangeError as error:
            error.add_note("see --from, --to and `sbp streams describe`")
            raise

    def _learn_tail(self, stream_id: int) -> Reach:
        """Return how far a stream goes, waiting for the server of its tail. Raises SbpError."""
        at = self.reaches[stream_id]
        if at.next_offset is None:
            (bounds,) = self._client.stream_bounds([stream_id])
            at = replace(at, start_offset=bounds.start_offset, next_offset=bounds.next_offset)
            self.reaches[stream_id] = at
        return at

    def _look_up(self, position: Position | None) -> Mapping[int, int]:
        if position is None or position.kind is not PositionKind.TIME:
            return {}
        return self._client.lookup_offsets(dict.fromkeys(self.reaches, position.number))


class Reading:
    """Reads what is wanted, and commits for the group while it does.

    With `commits_at_end` nothing is committed before `commit`: what was read may be discarded.
    """

    def __init__(self, client: Client, wanted: Wanted, *, commits_at_end: bool) -> None:
        self._client = client
        self._wanted = wanted
        self._group = None if commits_at_end else wanted.group
        self._written: dict[str, int] = {}
        self._consumers: list[Consumer] = []
        self.plan: Plan
        """The streams and their parts; it is there with the first batch."""

    def batches(self) -> Generator[Batch]:
        """Yield the batches, each done when the next one is asked for. Raises SbpError."""
        plan = self.plan = make_plan(self._client, self._wanted)
        yield from self._read(plan)
        if plan.open_ended and not self._wanted.is_following:
            flush()
            for stream_id in sorted(plan.open_ended):
                span = plan.spans[stream_id]
                write_notice(
                    f"the end of stream {stream_id} from offset"
                    f" {max(span.start_offset, span.end_offset or 0)} on is unavailable: waiting"
                    " for it"
                )
            yield from self._read(rest_of(self._client, plan))

    def on_written(self, stream: str, offset: int) -> None:
        """Note that the records of a stream before an offset are written."""
        self._written[stream] = offset

    def stop_at(self, stream: str, offset: int) -> None:
        """Let the records before an offset be the last ones of the batch that are done."""
        self._consumers[-1].seek(stream, offset)

    def finish(self) -> None:
        """Commit what is written, unless that is left to `commit`, or was done at the end."""
        if self._group is not None and self._consumers:
            try:
                for stream, offset in self._written.items():
                    self._consumers[-1].seek(stream, offset)
                self._consumers[-1].commit()
            except ConfigurationError:  # the interrupt has closed it, perhaps before all was done
                self.commit()

    def commit(self) -> None:
        """Commit for the group what is written. Raises SbpError."""
        if self._wanted.group is None or not self._written:
            return
        streams = self._client.describe_streams([parse_stream(each) for each in self._written])
        offsets = {each.stream_id: self._written[each.label] for each in streams}
        self._client.commit_cursors(self._wanted.group, offsets)

    def _read(self, plan: Plan) -> Generator[Batch]:
        client = self._client.on_loop
        consumer = Consumer(
            AsyncConsumer(
                client,
                plan.selection,
                spans=plan.spans,
                follow=self._wanted.is_following,
                assignment=AsyncWholeSelection(client, self._group),
                group=self._wanted.group,
                hand=RecordIterator,
            )
        )
        self._consumers.append(consumer)
        with consumer:
            try:
                yield from consumer.batches()
            except DamagedBatchError as error:
                raise RecordBatchError(
                    f"{error}; --from {error.end_offset} continues after them"
                ) from error


def check_wanted(wanted: Wanted) -> None:
    """Raise ConfigurationError for a part that has no records, or that a group cannot have read."""
    if wanted.end is not None:
        check_order(wanted.start, wanted.end)
    if wanted.group is not None and (wanted.last is not None or wanted.end is not None):
        raise ConfigurationError(
            "--group reads on to the tail from where the group is: leave --last and --to out"
        )


@contextmanager
def shown_progress(
    client: Client, *, is_wanted: bool, has_end: bool
) -> Iterator[Callable[[Plan, Batch], None]]:
    """Show how many bytes are read, of how many if the wanted records `has_end`.

    Yields the function to call with each batch that is written. Without a terminal, or if progress
    is not wanted, nothing is shown and no server is asked.
    """
    if not (is_wanted and is_shown()):
        yield lambda plan, batch: None
        return
    with progress(BYTES) as report:
        yield _Meter(client, report, has_end=has_end).on_written


class _Meter:
    """Estimates bytes from records: all records of a stream are taken to be of the same size."""

    def __init__(self, client: Client, report: OnProgress, *, has_end: bool) -> None:
        self._client = client
        self._report = report
        self._has_end = has_end
        self._is_measured = False
        self._record_bytes: dict[str, float] = {}
        self._total: int | None = None
        self._record_count = 0
        self._done = 0.0

    def on_written(self, plan: Plan, batch: Batch) -> None:
        """Report the bytes of all batches until now."""
        if not self._is_measured:
            self._is_measured = True
            with suppress(SbpError):  # progress is not worth the end of the command
                self._measure(plan)
        self._record_count += len(batch)
        self._done += len(batch) * self._record_bytes.get(batch.stream, 0)
        self._report(int(self._done), self._total, counted(self._record_count, "record"))

    def _measure(self, plan: Plan) -> None:
        ids = [*plan.spans]
        sizes, reaches, total = find_sizes(self._client, ids), find_reach(self._client, ids), 0.0
        for info in self._client.describe_streams(ids):
            at, span = reaches[info.stream_id], plan.spans[info.stream_id]
            count = max(at.readable_end - at.start_offset, 1)
            size = sizes.get(info.stream_id, 0) / count
            self._record_bytes[info.label] = size
            total += size * ((span.end_offset or at.readable_end) - span.start_offset)
        self._total = int(total) if self._has_end and total else None
