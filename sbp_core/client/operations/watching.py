"""Operations that find where many streams begin and end, and how far they can be read now.

`watch_bounds` is for callers that poll. While nothing changes, it costs one short call to the
placement driver and to each range server, all at the same time: servers count changes, and report
the changes since a count (SPEC "LIST_RANGES", "DESCRIBE_RANGE").

`reach` does not wait for range servers that are unavailable: the placement driver is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace

from sbp_core import limits
from sbp_core.client.operations.calls import Context, decode_reply
from sbp_core.client.operations.open_calls import Call, Reply, gather
from sbp_core.client.operations.range_placement import (
    check_errors,
    checked_range,
    follow,
    locate,
    maybe_changes,
    no_server,
    note_commit,
    revalidate,
)
from sbp_core.client.operations.replicas import Replicas, worst_failure
from sbp_core.client.operations.router import Router
from sbp_core.client.operations.stream_bounds import (
    Bounds,
    bounds_between,
    describe_call,
    stream_bounds,
)
from sbp_core.client.types import MetadataChanges, RangeInfo, Reach, StreamBounds, UnavailableRange
from sbp_core.errors import SbpError
from sbp_core.wire.headers import (
    DescribeRangeResult,
    DescribeRangesRequest,
    DescribeRangesResponse,
    ListRangesRequest,
    ListRangesResponse,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error


@dataclass(frozen=True, slots=True)
class _Source:
    """A range server, the revision as of which its bounds are known, and its stream count."""

    endpoint: str
    revision: int
    stream_count: int


@dataclass(frozen=True, slots=True)
class _Basis:
    """The sources of bounds: placement as of a revision, and the answers of range servers."""

    revision: int
    ranges: Mapping[int, tuple[RangeInfo, ...]]
    sources: tuple[_Source, ...]


@dataclass(frozen=True, slots=True)
class BoundsView:
    """Where streams begin and end, by id.

    If nothing changed, the next call that starts from a view returns the same object `bounds`.
    `basis` is for that call only. `revision` is the revision of the placement driver's metadata
    as of which the streams were found; None if the placement driver counts no revisions.
    """

    bounds: Mapping[int, StreamBounds]
    basis: _Basis | None = None
    revision: int | None = None


async def watch_bounds(
    context: Context, stream_ids: Sequence[int], earlier: BoundsView | None = None
) -> BoundsView:
    """Return where streams begin and end now, cheaply for callers that poll.

    Pass the result of the last call as `earlier`: only changes since then are asked for, and
    `bounds` is the same object if there are none. Raises NotFoundError naming all missing
    streams.
    """
    wanted = tuple(stream_ids)
    if earlier is not None:
        view = await _maybe_later(context, earlier, wanted)
        if view is not None:
            return view
    return await _look(context, wanted)


async def _look(context: Context, stream_ids: tuple[int, ...]) -> BoundsView:
    """Ask for the revisions of the servers, and then for all bounds."""
    basis = None
    if len(stream_ids) >= limits.BOUNDS_WATCHED_MIN:
        check_errors(await revalidate(context, stream_ids))
        basis = await _maybe_basis(context, stream_ids)
    found = await stream_bounds(context, stream_ids)
    revision = context.router.maybe_revision(stream_ids)
    if basis is not None and revision != basis.revision:
        basis = None
    return BoundsView({each.stream_id: each for each in found}, basis, revision)


async def _maybe_basis(context: Context, stream_ids: tuple[int, ...]) -> _Basis | None:
    """Return the placement and revisions now; None if a server counts no revisions."""
    router = context.router
    revision = router.maybe_revision(stream_ids)
    if revision is None:
        return None
    ranges = {each: router.maybe_ranges(each) or () for each in stream_ids}
    counts = _server_counts(ranges)
    header = DescribeRangesRequest(context.timeout_ms)
    replies = await gather(context.open_calls, [_question(each, header) for each in counts])
    sources = []
    for server, reply in zip(counts, replies, strict=True):
        news = _maybe_news(reply)
        if news is None:
            return None
        sources.append(_Source(server, news[0], counts[server]))
    return _Basis(revision, ranges, tuple(sources))


def _server_counts(ranges: Mapping[int, Sequence[RangeInfo]]) -> Counter[str]:
    """Return for each range server how many streams end there."""
    servers = map(_maybe_server, ranges.values())
    return Counter(each for each in servers if each is not None)


async def _maybe_later(
    context: Context, earlier: BoundsView, wanted: tuple[int, ...]
) -> BoundsView | None:
    """Return the view now, by the changes since an earlier view.

    Returns None if a server does not report changes, or if an open range has ended or moved.
    """
    basis = earlier.basis
    if basis is None:
        return None
    placement = ListRangesRequest(context.timeout_ms, since_revision=basis.revision)
    placed, *replies = await gather(
        context.open_calls,
        [
            Call(context.drivers.endpoint, Opcode.LIST_RANGES, placement, context.timeout_ms),
            *(_news_of(each, context.timeout_ms) for each in basis.sources),
        ],
    )
    changes = _maybe_changes(context.router, placed, basis.revision)
    if changes is None or changes.stream_ids is None:
        return None
    if changes.revision == basis.revision and wanted == tuple(earlier.bounds):
        return _maybe_updated(earlier, basis, replies)
    check_errors(await follow(context, wanted, basis.revision, changes))
    moved = [each for each in wanted if each in changes.stream_ids or each not in earlier.bounds]
    found = {each.stream_id: each for each in (await stream_bounds(context, moved))}
    ranges = {each: context.router.maybe_ranges(each) or () for each in wanted}
    counts = _server_counts(ranges)
    is_asked = counts.keys() <= {each.endpoint for each in basis.sources}
    if not is_asked or context.router.maybe_revision(wanted) != changes.revision:
        return None
    sources = tuple(replace(each, stream_count=counts[each.endpoint]) for each in basis.sources)
    bounds = {each: found.get(each) or earlier.bounds[each] for each in wanted}
    now = _Basis(changes.revision, ranges, sources)
    view = BoundsView(earlier.bounds if bounds == earlier.bounds else bounds, now, now.revision)
    return _maybe_updated(view, now, replies, newer=found)


def _maybe_updated(
    view: BoundsView,
    basis: _Basis,
    replies: Sequence[Reply],
    newer: Container[int] = (),
) -> BoundsView | None:
    """Return a view with the changes of its range servers. Streams in `newer` are current already.

    Returns None if a server did not answer, or if an open range has ended.
    """
    sources: list[_Source] = []
    changed: dict[int, StreamBounds] = {}
    for source, reply in zip(basis.sources, replies, strict=True):
        news = _maybe_news(reply)
        if news is None:
            return None
        revision, results = news
        sources.append(replace(source, revision=revision))
        for result in results:
            stream_id = result.stream_id
            pieces = basis.ranges.get(stream_id, ())
            if _maybe_server(pieces) != source.endpoint or stream_id in newer:
                continue
            if maybe_error(result.status) is not None or result.stream_range is None:
                return None
            tail = checked_range(result.stream_range, source.endpoint)
            if tail.range_index < pieces[-1].range_index:
                continue
            if tail.range_index > pieces[-1].range_index or tail.end_offset is not None:
                return None
            bound = bounds_between(pieces[0], tail, tail.next_offset)
            if bound != view.bounds[stream_id]:
                changed[stream_id] = bound
    if tuple(sources) == basis.sources:
        return view
    bounds = {**view.bounds, **changed} if changed else view.bounds
    return BoundsView(bounds, replace(basis, sources=tuple(sources)), basis.revision)


def _news_of(source: _Source, timeout_ms: int) -> Call:
    """Return the call that asks for changes, limited to the size of an answer for all streams."""
    changed_max = max(source.stream_count, limits.RESULTS_PER_FRAME)
    header = DescribeRangesRequest(timeout_ms, (), source.revision, changed_max)
    return _question(source.endpoint, header)


def _question(endpoint: str, header: DescribeRangesRequest) -> Call:
    return Call(endpoint, Opcode.DESCRIBE_RANGE, header, header.timeout_ms)


def _maybe_changes(router: Router, reply: Reply, since: int) -> MetadataChanges | None:
    """Return what changed since a revision; None if the placement driver does not say."""
    try:
        answer = decode_reply(reply, ListRangesResponse)[-1]
    except SbpError:
        return None
    note_commit(router, answer)
    return maybe_changes(answer, since)


def _maybe_news(reply: Reply) -> tuple[int, list[DescribeRangeResult]] | None:
    """Return the revision and results of a server; None if it failed or has no revision."""
    try:
        answers = decode_reply(reply, DescribeRangesResponse)
    except SbpError:
        return None
    revision = answers[-1].revision
    results = [result for answer in answers for result in answer.describe_responses]
    return None if revision < 0 else (revision, results)


def _maybe_server(pieces: Sequence[RangeInfo]) -> str | None:
    """Return the server that knows the end of a stream; None if the last range is sealed."""
    last = pieces[-1] if pieces else None
    return last.servers[0] if last and last.end_offset is None and last.servers else None


async def reach(
    context: Context,
    positions: Mapping[int, int | None],
    *,
    timeout_ms: int,
    spared: Mapping[str, SbpError],
) -> dict[int, Reach]:
    """Return how far streams, by id, can be read from a position; None is their first record.

    Unlike `stream_bounds` the call does not wait for servers that are down: the ranges of servers
    that do not answer within `timeout_ms` are `Reach.unavailable`. Servers in `spared` are not
    asked, and count as unavailable with the given error. Raises NotFoundError naming all missing
    streams.
    """
    # SPEC "DESCRIBE_RANGE"
    stream_ids = list(positions)
    check_errors(await revalidate(context, stream_ids))
    bounds = Bounds(context.router)
    servers = _Servers(spared)
    failures: dict[int, tuple[str | None, SbpError]] = {}
    while pending := [each for each in bounds.missing(stream_ids) if each not in failures]:
        bounds.count_look()
        check_errors(await locate(context, pending))
        questions = servers.to_ask(bounds.questions(pending))
        failures |= bounds.failures | servers.unasked
        replies = await gather(
            context.open_calls, [describe_call(*each, timeout_ms) for each in questions]
        )
        for (server, pieces), reply in zip(questions, replies, strict=True):
            servers.note(server, reply.error)
            bounds.on_reply(server, pieces, reply)
        failures |= bounds.failures
    ahead = {each: _ahead(context.router, each, at) for each, at in positions.items()}
    now_ms = context.now_ms()
    while others := servers.unknown(context.replicas, ahead.values(), now_ms):
        replies = await gather(
            context.open_calls, [describe_call(*each, timeout_ms) for each in others]
        )
        now_ms = context.now_ms()
        for (server, (piece, *_)), reply in zip(others, replies, strict=True):
            servers.note(server, reply.error)
            if reply.error is not None and piece.is_sealed_and_replicated:
                context.replicas.on_failure(piece, server, reply.error, now_ms)
    for error in (*(error for _, error in failures.values()), *servers.unavailable.values()):
        if not error.retriable:
            raise error
    return {
        stream_id: _reach(stream_id, bounds, pieces, servers, failures.get(stream_id))
        for stream_id, pieces in ahead.items()
    }


async def probe(
    context: Context, endpoints: Collection[str], *, timeout_ms: int
) -> dict[str, SbpError]:
    """Send a PING to each server; return the errors of servers that fail within `timeout_ms`.

    Servers that answer are not in the result: it is empty if all are reachable.
    """
    # SPEC "PING"
    asked = list(endpoints)
    replies = await gather(
        context.open_calls, [Call(each, Opcode.PING, None, timeout_ms) for each in asked]
    )
    return {
        endpoint: reply.error
        for endpoint, reply in zip(asked, replies, strict=True)
        if reply.error is not None
    }


class _Servers:
    """The servers that were asked or spared, and the errors of the unavailable ones."""

    def __init__(self, spared: Mapping[str, SbpError]) -> None:
        self.unavailable: dict[str, SbpError] = {}
        self.known: set[str] = set()
        self.unasked: dict[int, tuple[str | None, SbpError]] = {}
        self._spared = spared

    def to_ask(
        self, questions: Sequence[tuple[str, Sequence[RangeInfo]]]
    ) -> list[tuple[str, Sequence[RangeInfo]]]:
        """Return the questions to servers that are not spared; the other streams fail."""
        self.unasked = {}
        for server, pieces in questions:
            if server in self._spared:
                error = self.unavailable[server] = self._spared[server]
                self.unasked |= {piece.stream_id: (server, error) for piece in pieces}
        return [each for each in questions if each[0] not in self._spared]

    def unknown(
        self, replicas: Replicas, found: Collection[Sequence[RangeInfo]], now_ms: float
    ) -> list[tuple[str, Sequence[RangeInfo]]]:
        """Return the next servers to ask, for ranges that no answering server is known for."""
        pieces: dict[str, RangeInfo] = {}
        for piece in (each for ranges in found for each in ranges):
            readers = replicas.readers(piece, now_ms)
            self.unavailable |= {
                each: self._spared[each] for each in readers if each in self._spared
            }
            left = [each for each in readers if each not in self.unavailable]
            if left and not self.known.intersection(left):
                pieces.setdefault(left[0], piece)
        return [(server, [piece]) for server, piece in pieces.items()]

    def maybe_failure(self, piece: RangeInfo) -> tuple[str | None, SbpError] | None:
        """Return a server and an error if no server that a range is read from answers."""
        if not piece.servers:
            return None, no_server(piece)
        readers = piece.servers if piece.is_sealed_and_replicated else piece.servers[:1]
        failed = {each: self.unavailable[each] for each in readers if each in self.unavailable}
        return worst_failure(failed) if len(failed) == len(readers) else None

    def note(self, server: str, error: SbpError | None) -> None:
        """Record how a call ended."""
        self.known.add(server)
        if error is not None:
            self.unavailable[server] = error


def _ahead(router: Router, stream_id: int, position: int | None) -> tuple[RangeInfo, ...]:
    """Return the ranges of a stream that end behind a position."""
    return tuple(
        piece
        for piece in router.maybe_ranges(stream_id) or ()
        if position is None or piece.is_ahead_of(position)
    )


def _reach(
    stream_id: int,
    bounds: Bounds,
    ahead: Sequence[RangeInfo],
    servers: _Servers,
    failure: tuple[str | None, SbpError] | None,
) -> Reach:
    known = bounds.found.get(stream_id)
    open_ranges = [] if known else ahead[-1:]
    unavailable = []
    for piece in ahead[: len(ahead) - len(open_ranges)]:
        failed = servers.maybe_failure(piece)
        if failed is not None:
            unavailable.append(UnavailableRange(piece.start_offset, piece.end_offset, *failed))
    if known is not None:
        return Reach(stream_id, known.start_offset, known.next_offset, tuple(unavailable))
    assert failure is not None
    start_offset = bounds.first_offset(stream_id)
    tail_offset = open_ranges[0].start_offset if open_ranges else start_offset
    unavailable.append(UnavailableRange(tail_offset, None, *failure))
    return Reach(stream_id, start_offset, None, tuple(unavailable))
