"""The parts of the transaction model: messages, drivers, streams, servers and their steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from sbp_core.errors import SbpError, StatusCode, StatusError, error_for_code
from sbp_core.log.entry import Location
from sbp_core.log.states.staged_states import (
    LoggedTxnEnd,
    StagedStates,
    Staging,
    commit_entry,
    drop_entry,
    staged_entry,
)
from sbp_core.pd.txns.decisions import Ledger, Manifest, Part
from sbp_core.pd.txns.publications import Publication

# Messages; the type distinguishes tuples with the same fields


class Stage(NamedTuple):
    """Stage one batch of one record."""

    stream_id: int
    range_index: int
    txn_id: str
    kind: str = "stage"


class End(NamedTuple):
    """Publish what is staged in a range."""

    stream_id: int
    range_index: int
    txn_ids: tuple[str, ...]
    kind: str = "end"


class Drop(NamedTuple):
    """Drop what is staged in a range."""

    stream_id: int
    range_index: int
    txn_id: str
    kind: str = "drop"


class Commit(NamedTuple):
    """Decide a batch."""

    manifest: Manifest


Message = Stage | End | Drop | Commit


# Servers and drivers


class Server(NamedTuple):
    """The state of a stream in one server's log, as a value."""

    stagings: frozenset[tuple[int, str]] = frozenset()
    ends: tuple[LoggedTxnEnd, ...] = ()


class Driver(NamedTuple):
    """How far a driver has come, and where what it does was staged for the batch at work."""

    plan: int = 0
    done: int = 0
    parts: tuple[Part, ...] = ()
    is_alive: bool = True


class Stream(NamedTuple):
    """A stream: ranges known to the placement driver, those sealed, and what readers see."""

    known: int = 1
    sealed: int = 0
    visible: tuple[str, ...] = ()


class State(NamedTuple):
    """Everything. `net` has what was sent and may arrive, once more or late, at any time.

    `lost` is what disks lost: stream id, range index, what it was staged under.
    """

    drivers: tuple[Driver, ...]
    streams: tuple[Stream, ...]
    servers: tuple[tuple[Server, Server], ...]
    decisions: tuple[Manifest, ...] = ()
    settled: frozenset[tuple[int, int]] = frozenset()
    aborted: frozenset[str] = frozenset()
    publications: tuple[Publication | None, ...] = ()
    net: frozenset[Message] = frozenset()
    lost: frozenset[tuple[int, int, str]] = frozenset()
    given_up: frozenset[tuple[int, int]] = frozenset()


class Work(NamedTuple):
    """A batch of a driver; `staged` has a stream id and a transaction's id for each append."""

    batch_number: int
    staged: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Book(Ledger):
    """The ledger of a state."""

    state: State

    def maybe_last_batch(self, producer: str) -> int | None:
        return max((each.batch_number for each in self.state.decisions), default=None)

    def is_named(self, txn_id: str, stream_id: int | None = None) -> bool:
        return any(
            part.txn_id == txn_id and stream_id in {None, part.stream_id}
            for number, manifest in enumerate(self.state.decisions)
            for part in manifest.parts
            if (number, part.stream_id) not in self.state.settled
        )

    def is_aborted(self, txn_id: str) -> bool:
        return txn_id in self.state.aborted

    def has_stream(self, stream_id: int) -> bool:
        return True

    def has_range(self, stream_id: int, range_index: int) -> bool:
        return range_index < self.state.streams[stream_id].known


# Messages are applied to the log's own states, converted from and to values


@cache
def serve(
    server: Server, message: Message, is_open: bool, *, remembers: bool
) -> tuple[Server, SbpError | None, bool]:
    """Return the server after a message, its refusal if it refuses, and whether it published."""
    known = StagedStates()
    for range_index, txn_id in sorted(server.stagings):
        staging = Staging(message.stream_id, range_index, txn_id, staged_at_ms=0)
        staging.batches.append(0, 0, 1)
        known.restore(staging)
    for end in server.ends:
        known.restore_end(message.stream_id, end)
    try:
        match message:
            case Stage():
                entry = _stage(known, message, is_open=is_open)
            case End():
                entry = _end(known, message, is_open=is_open)
            case _:
                entry = _drop(known, message)
    except SbpError as error:
        return server, error, False
    if entry is None:
        return server, None, False
    known.apply(entry, Location(0, entry.length), 0)
    stagings = known.stagings_of(message.stream_id)
    after = Server(
        frozenset((each.range_index, each.txn_id) for each in stagings),
        known.ends(message.stream_id) if remembers else (),
    )
    return after, None, isinstance(message, End)


def _stage(known: StagedStates, message: Stage, *, is_open: bool):
    if known.is_ended(message.stream_id, message.txn_id):
        raise _error(StatusCode.TXN_ENDED)
    if known.maybe_staging(*message[:3]) is not None:
        return None
    if not is_open:
        raise _error(StatusCode.RANGE_ALREADY_SEALED)
    return staged_entry(*message[:3], 0, 1, b"")


def _end(known: StagedStates, message: End, *, is_open: bool):
    ends = known.ends(message.stream_id)
    if any(end.is_commit and end.txn_ids == message.txn_ids for end in ends):
        return None
    if any(known.is_ended(message.stream_id, txn_id) for txn_id in message.txn_ids):
        raise _error(StatusCode.TXN_ENDED)
    if not is_open:
        raise _error(StatusCode.RANGE_ALREADY_SEALED)
    found = [known.maybe_staging(*message[:2], txn_id) for txn_id in message.txn_ids]
    stagings = [staging for staging in found if staging is not None]
    if len(stagings) < len(found):
        raise _error(StatusCode.TXN_INCOMPLETE)
    return commit_entry(message.stream_id, message.range_index, 0, stagings)


def _drop(known: StagedStates, message: Drop):
    if known.maybe_staging(*message[:3]) is None:
        return None
    return drop_entry(message.stream_id, message.range_index, [message.txn_id])


def _error(code: StatusCode) -> StatusError:
    return error_for_code(code, "")
