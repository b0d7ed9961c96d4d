"""SEAL_RANGE, CREATE_RANGE and MOVE_RANGES at the placement driver.

MOVE_RANGES lets ranges go to the servers that an administrator names, the primary first. The open
range of a stream is sealed, and the next one is opened on these servers. A sealed range with
several replicas gets the servers that it lacks as new members, which copy it. The other members are
removed when all named servers have the whole range. Each request goes one step, and the list of
members is the only state. So the client repeats the request until it is done, and a client that
stops leaves a range with more replicas than it needs, at most.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sbp_core import limits
from sbp_core.errors import (
    NoRangeServerError,
    RangeNotFoundError,
    RangeOpenError,
    SbpError,
    StatusError,
    invalid,
)
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import NO_SEQ, RangeRecord, ServerLoad, no_stream, range_table
from sbp_core.pd.server_membership import Membership
from sbp_core.pd.streams.range_operations import create_range
from sbp_core.pd.streams.repair import Repair
from sbp_core.pd.streams.sealing import RangeAnnouncer, Sealer
from sbp_core.server.answers import in_frames, with_results
from sbp_core.server.dispatch import Answer, Response, ServerCall
from sbp_core.wire.headers import (
    CreateRangeRequest,
    CreateRangeResponse,
    MoveRangesRequest,
    MoveRangesResponse,
    RangeId,
    RangeMove,
    RangeMoveResult,
    SealRangesRequest,
    SealRangesResponse,
    SealRangesResult,
    StreamRange,
)
from sbp_core.wire.status import SUCCESS, maybe_error, status_for
from sbp_core.wording import counted, listed

_LOG: Final = logging.getLogger(__name__)

_OPEN: Final = -1
"""The index that stands for the open range of a stream."""


@dataclass(frozen=True, slots=True)
class _Moving:
    """A range that is to be on some servers: on its way, done, or refused for `error`."""

    move: RangeMove
    record: RangeRecord | None = None
    is_done: bool = False
    error: SbpError | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is the open range of its stream, which moves by a seal."""
        return self.move.range_index == _OPEN

    def after(self, outcome: SbpError | None) -> _Moving:
        """Return it as done, or refused."""
        return replace(self, is_done=outcome is None, error=outcome)


class RangeHandlers:
    """Serves the operations that end, open and move ranges."""

    def __init__(
        self,
        store: StoreThread,
        membership: Membership,
        sealer: Sealer,
        repair: Repair,
        announcer: RangeAnnouncer,
    ) -> None:
        self._store = store
        self._membership = membership
        self._sealer = sealer
        self._repair = repair
        self._announcer = announcer

    async def seal(self, call: ServerCall) -> Answer:
        """SPEC "SEAL_RANGE" at the placement driver: answers the new writable ranges."""
        request = call.decode(SealRangesRequest)
        results = await self._sealer.seal(request.ranges, request.cause)
        return with_results(SealRangesResponse, results)

    async def create(self, call: ServerCall) -> Answer:
        """Open the next range of a stream (SPEC "CREATE_RANGE")."""
        request = call.decode(CreateRangeRequest)
        try:
            opened = await self._store.run(
                create_range, request.stream_range, self._membership.live_servers()
            )
        except StatusError as error:
            return Response(CreateRangeResponse(status=status_for(error)))
        else:
            self._announcer.announce([opened])
            return Response(CreateRangeResponse(status=SUCCESS, stream_range=opened))

    async def move(self, call: ServerCall) -> Answer:
        """SPEC "MOVE_RANGES": results in the order of the request."""
        request = call.decode(MoveRangesRequest)
        if len({each.stream_id for each in request.moves}) < len(request.moves):
            raise invalid("MOVE_RANGES names a stream twice: move one range of each stream at once")
        servers, draining = self._membership.live_servers(), self._membership.draining
        planned = await self._store.run(_plan_moves, request.moves, servers, draining)
        pending = [each for each in planned if each.error is None and not each.is_done]
        ended = await self._move_open([each for each in pending if each.is_open])
        ended += await self._move_sealed([each for each in pending if not each.is_open])
        known = {each.move.stream_id: each for each in (*planned, *ended)}
        return in_frames(
            [_result(known[each.stream_id]) for each in request.moves],
            lambda part: MoveRangesResponse(move_responses=part, status=SUCCESS),
        )

    async def _move_open(self, moving: Sequence[_Moving]) -> list[_Moving]:
        """Seal the open ranges, and open the next ones where they are to be."""
        if not moving:
            return []
        items = [
            RangeId(each.move.stream_id, each.record.range_index) for each in moving if each.record
        ]
        targets = {each.move.stream_id: each.move.server_ids for each in moving}
        results = await self._sealer.seal(items, targets=targets)
        return [
            each.after(maybe_misplaced(result, each.move))
            for each, result in zip(moving, results, strict=True)
        ]

    async def _move_sealed(self, moving: Sequence[_Moving]) -> list[_Moving]:
        """Go one step with each sealed range; return the ranges that are done, or refused."""
        settled = await self._repair.settled([each.record for each in moving if each.record])
        ended = []
        for each in moving:
            stream_id, index = key = each.move.stream_id, each.move.range_index
            if not settled[key]:
                error = NoRangeServerError.of(
                    f"no range server answers that has the whole of range {index} of stream"
                    f" {stream_id}"
                )
                ended.append(each.after(error))
                continue
            is_done, added = await self._store.run(_change, each.move, settled[key])
            self._announcer.announce(added)
            if added:
                _LOG.info("range is copied stream=%d range=%d to=%s", *key, each.move.server_ids)
            if is_done:
                _LOG.info("range moved stream=%d range=%d to=%s", *key, each.move.server_ids)
                ended.append(each.after(None))
        return ended


def _plan_moves(
    store: MetadataStore,
    moves: Sequence[RangeMove],
    servers: Sequence[ServerLoad],
    draining: Collection[int],
) -> list[_Moving]:
    """Look up the ranges, while these servers can be given ranges."""
    streams = store.streams_by_id([each.stream_id for each in moves])
    known = store.servers.addresses()
    usable = {each.server_id: each for each in servers}
    planned = []
    for move, stream in zip(moves, streams, strict=True):
        try:
            if stream is None:
                raise no_stream(move.stream_id)
            record = _find(store, move)
            _check_servers(move.server_ids, stream.replica_count, known, draining)
            members = () if record.end_offset is None else record.server_ids
            _check_usable(move.server_ids, members, usable)
            planned.append(_Moving(move, record, is_done=_is_placed(record, move)))
        except SbpError as error:
            planned.append(_Moving(move, error=error))
    return planned


def _is_placed(record: RangeRecord, move: RangeMove) -> bool:
    """Whether a range is on its servers, and no others; an open one has their primary."""
    if move.range_index != _OPEN:
        return {*record.server_ids} == {*move.server_ids}
    return record.end_offset is None and _has_same_servers(record.server_ids, move.server_ids)


def _has_same_servers(server_ids: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether these are the wanted servers with their primary; the order of the others is free."""
    return server_ids[:1] == wanted[:1] and {*server_ids} == {*wanted}


def _find(store: MetadataStore, move: RangeMove) -> RangeRecord:
    """Return the range that a move names. Raises SbpError if that one does not move."""
    stream_id, index = move.stream_id, move.range_index
    if index == _OPEN:
        last = store.maybe_last_range(stream_id)
        if last is None:
            raise no_stream(stream_id)
        return last
    record = store.maybe_range(stream_id, index)
    if record is None:
        raise RangeNotFoundError.of(
            f"stream {stream_id} has no range {index}; list its ranges again"
        )
    if record.end_offset is None:
        raise RangeOpenError.of(
            f"range {index} of stream {stream_id} is open: it moves as range -1, by a seal"
        )
    if record.end_seq == NO_SEQ:
        raise invalid(
            f"range {index} of stream {stream_id} has one replica, and stays where it is until its"
            " records are trimmed"
        )
    return record


def _check_servers(
    server_ids: Sequence[int], replica_count: int, known: Collection[int], draining: Collection[int]
) -> None:
    """Raise InvalidRequestError unless there are as many servers as a stream has replicas."""
    unknown = {*server_ids} - {*known}
    if unknown:
        raise invalid(f"no range server has the id {min(unknown)}: `sbp cluster` lists them")
    if len({*server_ids}) != len(server_ids) or len(server_ids) != replica_count:
        raise invalid(
            f"the stream has {counted(replica_count, 'replica')}, and range servers"
            f" {listed(server_ids)} are named: name {replica_count} different ones, the primary"
            " first"
        )
    drained = {*server_ids}.intersection(draining)
    if drained:
        raise invalid(f"range server {min(drained)} is being drained: name another one")


def _check_usable(
    server_ids: Sequence[int], members: Collection[int], usable: Mapping[int, ServerLoad]
) -> None:
    """Raise NoRangeServerError unless a range of `members` can be on these servers now."""
    for each in server_ids:
        load = usable.get(each)
        is_new = each not in members
        if load is None or (is_new and load.is_unsteady):
            raise NoRangeServerError.of(
                f"range server {each} is down, or was so often lately: start it, wait, or name"
                " another one"
            )
        free_bytes = load.disk_free_bytes
        if is_new and free_bytes is not None and free_bytes < limits.PLACEMENT_DISK_FREE_BYTES:
            raise NoRangeServerError.of(
                f"range server {each} has too little free space: free some, or name another one"
            )


def _change(
    store: MetadataStore, move: RangeMove, complete: Collection[int]
) -> tuple[bool, list[StreamRange]]:
    """Add the servers that are no members, or remove all others once these have the whole range.

    Return whether that is done, and the range to announce if it has new members.
    """
    key = move.stream_id, move.range_index
    record = store.maybe_range(*key)
    if record is None:  # the stream was deleted
        return True, []
    added = [each for each in move.server_ids if each not in record.server_ids]
    if added:
        store.change_replicas(*key, added=added, removed=())
        changed = store.maybe_range(*key)
        return False, [range_table(changed, store.servers.addresses())] if changed else []
    if not {*move.server_ids}.issubset(complete):
        return False, []
    surplus = [each for each in record.server_ids if each not in move.server_ids]
    store.change_replicas(*key, added=(), removed=surplus)
    return True, []


def maybe_misplaced(result: SealRangesResult, move: RangeMove) -> SbpError | None:
    """Return why the open range of a stream is not where it is to be; None if it is.

    Another request may have opened it, so the move may be tried again.
    """
    opened = result.stream_range
    if opened is None:
        return maybe_error(result.status)
    placed = tuple(each.server.server_id for each in opened.servers if each.server is not None)
    if _has_same_servers(placed, move.server_ids):
        return None
    return NoRangeServerError.of(
        f"stream {move.stream_id} goes on in range {opened.range_index} on range servers"
        f" {listed(placed)}, as not all of {listed(move.server_ids)} could be given a range"
    )


def _result(moving: _Moving) -> RangeMoveResult:
    status = SUCCESS if moving.error is None else status_for(moving.error)
    return RangeMoveResult(moving.move.stream_id, moving.is_done, status)
