"""Programs that find out how far streams can be read while some range servers are away.

Nothing here waits for a server to come back; only the placement driver has to be there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sbp_core.client.programs.calls import Context
from sbp_core.client.programs.program import Call, Program, gather
from sbp_core.client.programs.range_placement import (
    Bounds,
    check_errors,
    describe_call,
    locate,
    no_server,
    revalidate,
)
from sbp_core.client.programs.router import Router
from sbp_core.client.types import AwayRange, RangeInfo, Reach
from sbp_core.errors import SbpError
from sbp_core.wire.opcodes import Opcode


def reach(
    context: Context,
    positions: Mapping[int, int | None],
    timeout_ms: int,
    spared: Mapping[str, SbpError],
) -> Program[dict[int, Reach]]:
    """Return how far each stream, by id, can be read from its position; None: from its first.

    Every server of a range that lies ahead is asked once (SPEC "DESCRIBE_RANGES"), for
    `timeout_ms`; those in `spared` are taken to be away, with that error, and not asked. Raises
    NotFoundError naming all missing streams, and the errors that no wait cures.
    """
    stream_ids = list(positions)
    check_errors((yield from revalidate(context, stream_ids)))
    bounds = Bounds(context.router)
    servers = _Servers(spared)
    failures: dict[int, tuple[str | None, SbpError]] = {}
    while pending := [each for each in bounds.missing(stream_ids) if each not in failures]:
        bounds.count_look()
        check_errors((yield from locate(context, pending)))
        questions = servers.to_ask(bounds.questions(pending))
        failures |= bounds.failures | servers.unasked
        replies = yield from gather([describe_call(*each, timeout_ms) for each in questions])
        for (server, pieces), reply in zip(questions, replies, strict=True):
            servers.note(server, reply.error)
            bounds.on_reply(server, pieces, reply)
        failures |= bounds.failures
    ahead = {each: _ahead(context.router, each, at) for each, at in positions.items()}
    others = servers.to_ask(_one_each(ahead.values(), servers.known))
    replies = yield from gather([describe_call(*each, timeout_ms) for each in others])
    for (server, _), reply in zip(others, replies, strict=True):
        servers.note(server, reply.error)
    for error in (*(error for _, error in failures.values()), *servers.away.values()):
        if not error.retriable:
            raise error
    return {
        stream_id: _reach(stream_id, bounds, pieces, servers, failures.get(stream_id))
        for stream_id, pieces in ahead.items()
    }


def probe(endpoints: Collection[str], timeout_ms: int) -> Program[dict[str, SbpError]]:
    """Return the error of each server that does not answer a PING in time (SPEC "PING")."""
    asked = list(endpoints)
    replies = yield from gather([Call(each, Opcode.PING, None, timeout_ms) for each in asked])
    return {
        endpoint: reply.error
        for endpoint, reply in zip(asked, replies, strict=True)
        if reply.error is not None
    }


class _Servers:
    """The servers that were asked, and which of them are away, or taken to be."""

    def __init__(self, spared: Mapping[str, SbpError]) -> None:
        self.away: dict[str, SbpError] = {}
        self.known: set[str] = set()
        self.unasked: dict[int, tuple[str | None, SbpError]] = {}
        self._spared = spared

    def to_ask(
        self, questions: Sequence[tuple[str, Sequence[RangeInfo]]]
    ) -> list[tuple[str, Sequence[RangeInfo]]]:
        """Return the questions without those to spared servers; the streams of those fail."""
        self.unasked = {}
        for server, pieces in questions:
            if server in self._spared:
                error = self.away[server] = self._spared[server]
                self.unasked |= {piece.stream_id: (server, error) for piece in pieces}
        return [each for each in questions if each[0] not in self._spared]

    def note(self, server: str, error: SbpError | None) -> None:
        """Take note of how a question ended."""
        self.known.add(server)
        if error is not None:
            self.away[server] = error


def _ahead(router: Router, stream_id: int, position: int | None) -> tuple[RangeInfo, ...]:
    """Return the ranges of a stream that end behind a position."""
    return tuple(
        piece
        for piece in router.maybe_ranges(stream_id) or ()
        if position is None or piece.is_ahead_of(position)
    )


def _one_each(
    found: Collection[Sequence[RangeInfo]], known: Collection[str]
) -> list[tuple[str, Sequence[RangeInfo]]]:
    """Return one range to ask about for each server that is not known yet."""
    pieces = {
        piece.servers[0]: piece
        for ranges in found
        for piece in ranges
        if piece.servers and piece.servers[0] not in known
    }
    return [(server, [piece]) for server, piece in pieces.items()]


def _reach(
    stream_id: int,
    bounds: Bounds,
    ahead: Sequence[RangeInfo],
    servers: _Servers,
    failure: tuple[str | None, SbpError] | None,
) -> Reach:
    known = bounds.found.get(stream_id)
    open_ranges = [] if known else ahead[-1:]
    away = []
    for piece in ahead[: len(ahead) - len(open_ranges)]:
        server = piece.servers[0] if piece.servers else None
        error = no_server(piece) if server is None else servers.away.get(server)
        if error is not None:
            away.append(AwayRange(piece.start_offset, piece.end_offset, server, error))
    if known is not None:
        return Reach(stream_id, known.start_offset, known.next_offset, tuple(away))
    assert failure is not None
    start_offset = bounds.first_offset(stream_id)
    tail_offset = open_ranges[0].start_offset if open_ranges else start_offset
    away.append(AwayRange(tail_offset, None, *failure))
    return Reach(stream_id, start_offset, None, tuple(away))
