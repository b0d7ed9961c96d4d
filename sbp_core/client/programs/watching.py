"""A program that looks again and again where many streams begin and end.

As long as nothing changes that takes one short question to the placement driver and to each range
server, all at the same time: servers count what changes, and tell which ranges that was
(SPEC "DESCRIBE_RANGE").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sbp_core import limits
from sbp_core.client.programs.calls import Context, decode_reply
from sbp_core.client.programs.program import Call, Program, Reply, gather
from sbp_core.client.programs.range_placement import (
    bounds_between,
    check_errors,
    checked_range,
    note_commit,
    revalidate,
    stream_bounds,
)
from sbp_core.client.programs.router import Router
from sbp_core.client.types import RangeInfo, StreamBounds
from sbp_core.errors import SbpError
from sbp_core.wire.dialect import Dialect
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
    """A range server, as of which of its revisions bounds are known, and of how many streams."""

    endpoint: str
    revision: int
    stream_count: int


@dataclass(frozen=True, slots=True)
class _Basis:
    """What bounds follow from: placement as of a revision, and what range servers have said."""

    revision: int
    ranges: Mapping[int, tuple[RangeInfo, ...]]
    sources: tuple[_Source, ...]


@dataclass(frozen=True, slots=True)
class BoundsView:
    """Where streams begin and end, by id.

    The next look that starts from a view gives the same `bounds`, not a copy, if nothing changed.
    """

    bounds: Mapping[int, StreamBounds]
    _stream_ids: tuple[int, ...]
    _maybe_basis: _Basis | None = None

    @property
    def maybe_revision(self) -> int | None:
        """The revision of the placement driver's metadata then; None: a next look asks for all."""
        return None if self._maybe_basis is None else self._maybe_basis.revision

    def of(self, stream_ids: Sequence[int]) -> _Basis | None:
        """Return what a look at these streams may start from."""
        return self._maybe_basis if self._stream_ids == stream_ids else None


def watch_bounds(
    context: Context, stream_ids: Sequence[int], earlier: BoundsView | None
) -> Program[BoundsView]:
    """Return the bounds of streams as they are now; `earlier` is what the last look returned.

    Raises as `stream_bounds` does.
    """
    wanted = tuple(stream_ids)
    basis = None if earlier is None else earlier.of(wanted)
    if earlier is not None and basis is not None:
        view = yield from _maybe_later(context, earlier, basis)
        if view is not None:
            return view
    return (yield from _look(context, wanted))


def _look(context: Context, stream_ids: tuple[int, ...]) -> Program[BoundsView]:
    """Ask for all the bounds, and before that for the revisions as of which they are known."""
    basis = None
    if len(stream_ids) >= limits.BOUNDS_WATCHED_MIN:
        check_errors((yield from revalidate(context, stream_ids)))
        basis = yield from _maybe_basis(context, stream_ids)
    found = yield from stream_bounds(context, stream_ids)
    if basis is not None and context.router.maybe_revision(stream_ids) != basis.revision:
        basis = None
    return BoundsView({each.stream_id: each for each in found}, stream_ids, basis)


def _maybe_basis(context: Context, stream_ids: tuple[int, ...]) -> Program[_Basis | None]:
    """Return the placement and the revisions of now; None where somebody does not count them."""
    router = context.router
    revision = router.maybe_revision(stream_ids)
    if revision is None or router.dialect is not Dialect.SPECIFICATION:
        return None
    ranges = {each: router.maybe_ranges(each) or () for each in stream_ids}
    counts = Counter(
        server for pieces in ranges.values() if (server := _maybe_server(pieces)) is not None
    )
    header = DescribeRangesRequest(context.timeout_ms)
    replies = yield from gather([_question(each, header) for each in counts])
    sources = []
    for server, reply in zip(counts, replies, strict=True):
        told = _maybe_told(reply)
        if told is None:
            return None
        sources.append(_Source(server, told[0], counts[server]))
    return _Basis(revision, ranges, tuple(sources))


def _maybe_later(
    context: Context, earlier: BoundsView, basis: _Basis
) -> Program[BoundsView | None]:
    """Return the view of now by what changed since an earlier one.

    None where that is not told, or is more than that open ranges have grown or were trimmed.
    """
    placement = ListRangesRequest(context.timeout_ms)
    placed, *replies = yield from gather(
        [
            Call(context.drivers.endpoint, Opcode.LIST_RANGES, placement, context.timeout_ms),
            *(_news_of(each, context.timeout_ms) for each in basis.sources),
        ]
    )
    if _maybe_revision(context.router, placed) != basis.revision:
        return None
    sources: list[_Source] = []
    changed: dict[int, StreamBounds] = {}
    for source, reply in zip(basis.sources, replies, strict=True):
        told = _maybe_told(reply)
        if told is None:
            return None
        revision, results = told
        sources.append(replace(source, revision=revision))
        for result in results:
            pieces = basis.ranges.get(_stream_of(result), ())
            if _maybe_server(pieces) != source.endpoint:
                continue
            if maybe_error(result.status) is not None or result.stream_range is None:
                return None
            tail = checked_range(result.stream_range, source.endpoint)
            if tail.range_index < pieces[-1].range_index:
                continue
            if tail.range_index > pieces[-1].range_index or tail.end_offset is not None:
                return None
            bound = bounds_between(pieces[0], tail, tail.next_offset)
            if bound != earlier.bounds[bound.stream_id]:
                changed[bound.stream_id] = bound
    if tuple(sources) == basis.sources:
        return earlier
    bounds = {**earlier.bounds, **changed} if changed else earlier.bounds
    return replace(earlier, bounds=bounds, _maybe_basis=replace(basis, sources=tuple(sources)))


def _news_of(source: _Source, timeout_ms: int) -> Call:
    """Return the question what changed, if that is less than to ask for all streams again."""
    changed_max = max(source.stream_count, limits.RESULTS_PER_FRAME)
    header = DescribeRangesRequest(timeout_ms, (), source.revision, changed_max)
    return _question(source.endpoint, header)


def _question(endpoint: str, header: DescribeRangesRequest) -> Call:
    return Call(endpoint, Opcode.DESCRIBE_RANGE, header, header.timeout_ms)


def _maybe_revision(router: Router, reply: Reply) -> int | None:
    """Return the revision of the placement driver's metadata, None if it does not tell."""
    try:
        answer = decode_reply(reply, ListRangesResponse)[-1]
    except SbpError:
        return None
    note_commit(router, answer)
    return answer.revision


def _maybe_told(reply: Reply) -> tuple[int, list[DescribeRangeResult]] | None:
    """Return a server's revision and the results; None if it failed, or cannot tell."""
    try:
        answers = decode_reply(reply, DescribeRangesResponse)
    except SbpError:
        return None
    revision = answers[-1].revision
    results = [result for answer in answers for result in answer.describe_responses]
    return None if revision < 0 else (revision, results)


def _maybe_server(pieces: Sequence[RangeInfo]) -> str | None:
    """Return the server that knows where a stream ends, None if none has to be asked."""
    last = pieces[-1] if pieces else None
    return last.servers[0] if last and last.end_offset is None and last.servers else None


def _stream_of(result: DescribeRangeResult) -> int:
    if result.stream_id >= 0 or result.stream_range is None:
        return result.stream_id
    return result.stream_range.stream_id
