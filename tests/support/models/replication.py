"""A small cluster that follows the rules of `sbp_core.replication`, as states and steps.

Three servers, two placement drivers with one store, one range, a writer, and a reader that reads
everything that is readable anywhere. A step is one thing that one process does without looking at
the others: append, sync, receive a message, crash, decide. Whatever is not bounded by a counter in
`Bounds` may happen in any order and any number of times:

* A message stays in the network for ever, once sent. So it may be late, be received again, or
  never be received at all.
* A process that takes no step is paused, or cut off.

`Rules` has every rule as a function, so that a test can leave one out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import NamedTuple, TypeVar

from sbp_core import replication
from sbp_core.replication import FenceAnswer, Prefix, Replica, Stage

PRIMARY = 0
WRONG = "?"
"""An entry whose bytes are not those that were written."""

Log = tuple[str, ...]
_T = TypeVar("_T")


_LOG_OF: dict[Prefix, Log] = {}


@cache
def prefix_of(log: Log) -> Prefix:
    """Return the prefix that these entries are."""
    prefix = prefix_of(log[:-1]).extended(log[-1].encode()) if log else Prefix()
    _LOG_OF[prefix] = log
    return prefix


class Server(NamedTuple):
    """A range server: its disk, and `in_office` while it is the primary that opened the range."""

    disk: Log = ()
    unsynced: Log = ()
    noted: Replica = Replica()
    appended: Log = ()
    """The entries that this process appended as the primary."""
    life: int = 0
    """Counts up when the data directory is lost: another server, by its identity."""
    in_office: bool = False
    acks: tuple[int, ...] = ()
    """By server: the number of entries that the primary knows to be durable."""

    @property
    def log(self) -> Log:
        """The entries that the process sees."""
        return self.disk + self.unsynced


class Append(NamedTuple):
    """REPLICATE with one entry."""

    before: Prefix
    entry: str


class Committed(NamedTuple):
    """REPLICATE without entries."""

    seq: int


class Ack(NamedTuple):
    """The answer to REPLICATE."""

    server: int
    life: int
    seq: int


class Fenced(NamedTuple):
    """The answer to it."""

    server: int
    life: int
    answer: FenceAnswer


Message = Append | Committed | Ack | Fenced


class Driver(NamedTuple):
    """A placement driver: the term that it believes to lead, and what it read at its start."""

    term: int = 0
    members: frozenset[int] = frozenset()


class State(NamedTuple):
    """All of the cluster, with what the writer and the reader saw."""

    servers: tuple[Server, ...]
    drivers: tuple[Driver, ...]
    network: frozenset[Message]
    members: frozenset[int]
    term: int = 0
    decisions: tuple[Log, ...] = ()
    """Decided ends that were stored, in order: one at most."""
    written: int = 0
    acknowledged: Log = ()
    seen: Log = ()
    crashes: int = 0
    damages: int = 0
    losses: int = 0


@dataclass(frozen=True)
class Bounds:
    """How often what is not free may happen."""

    entries: int = 2
    crashes: int = 1
    damages: int = 1
    losses: int = 0
    terms: int = 2


@dataclass(frozen=True)
class Rules:
    """Rules that a test may replace."""

    accepts: Callable[[Replica, Prefix], bool] = Replica.accepts
    committed_seq: Callable[[Collection[int], int], int] = replication.committed_seq
    readable_seq: Callable[[Replica], int] = lambda replica: replica.readable_seq
    fence: Callable[[Replica], Replica] = Replica.fenced
    fence_answer: Callable[[Replica], FenceAnswer] = Replica.fence_answer
    decided_end: Callable[[Iterable[FenceAnswer], int, int], Prefix | None] = (
        replication.decided_end
    )
    ends_with_its_process: bool = True
    """A primary that restarts does not go on in the range."""
    fences_in_order: bool = True
    """A fence waits for the entries before it to be on disk: no entry becomes durable behind it."""
    keeps_fences: bool = True
    """A fence is on disk before it is answered."""
    first_decision_stands: bool = True
    guards_writes_by_term: bool = True
    joins_before_it_counts: bool = True
    """The store has a member before the primary counts it."""
    knows_lives: bool = True
    """A server that lost its data directory is another server."""
    compares_digests: bool = True
    waits_for_settled: bool = True
    """The primary acknowledges waiting appends once `ack_count` replicas have settled."""


class BrokenPromiseError(Exception):
    """A state that must not be reached."""


@dataclass(frozen=True)
class Model:
    """The steps of the cluster."""

    rules: Rules = field(default_factory=Rules)
    bounds: Bounds = field(default_factory=Bounds)
    members: frozenset[int] = frozenset({0, 1, 2})
    ack_count: int = 2
    server_count: int = 3

    def start(self) -> State:
        """Return the cluster with an open range that has no entries yet."""
        primary = Server(in_office=True, acks=(0,) * self.server_count)
        others = (Server(),) * (self.server_count - 1)
        return State((primary, *others), (Driver(), Driver()), frozenset(), self.members)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield all that can happen next, by name."""
        for name, after in self._raw_steps(state):
            if after != state:
                drivers = tuple(sorted(after.drivers, key=lambda driver: driver.term))
                yield name, self._observed(after._replace(drivers=drivers))

    def _raw_steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._write(state)
        for index in range(self.server_count):
            for message in state.network:
                for after in self._receive(state, index, message):
                    yield f"server {index} receives {message}", after
            yield from self._go_wrong(state, index)
            yield from self._fence(state, index)
            yield from self._settle(state, index)
        yield from self._acknowledge_settled(state)
        for index in range(len(state.drivers)):
            yield from self._drive(state, index)

    # The primary.

    def _write(self, state: State) -> Iterator[tuple[str, State]]:
        primary = state.servers[PRIMARY]
        if not primary.in_office:
            return
        if state.written < self.bounds.entries and primary.noted.stage is Stage.OPEN:
            entry = "abcdef"[state.written]
            before = prefix_of(primary.log)
            after = _with(
                state,
                PRIMARY,
                primary._replace(
                    unsynced=(*primary.unsynced, entry), appended=(*primary.appended, entry)
                ),
            )
            sent = after.network | {Append(before, entry)}
            yield f"append {entry}", after._replace(written=state.written + 1, network=sent)
        if primary.unsynced and primary.noted.is_whole:
            log = primary.log
            noted = primary.noted.appended(prefix_of(log))
            acks = _at(primary.acks, PRIMARY, len(log))
            synced = primary._replace(disk=log, unsynced=(), noted=noted, acks=acks)
            yield "sync", _with(state, PRIMARY, synced)

    # Messages.

    def _receive(self, state: State, index: int, message: Message) -> Iterator[State]:
        server = state.servers[index]
        match message:
            case Append(before, entry) if index != PRIMARY:
                if self.rules.accepts(server.noted, before):
                    log = (*server.disk, entry)
                    server = server._replace(disk=log, noted=server.noted.appended(prefix_of(log)))
                    ack = Ack(index, server.life, len(log))
                    yield _with(state, index, server, ack)
            case Committed(seq) if index != PRIMARY:
                yield _with(state, index, server._replace(noted=server.noted.knowing(seq)))
            case Ack(sender, life, seq) if index == PRIMARY and server.in_office:
                if self._is_member(state, sender, life) and seq > server.acks[sender]:
                    acks = _at(server.acks, sender, seq)
                    yield _with(state, index, server._replace(acks=acks))
            case _:
                pass

    def _is_member(self, state: State, server: int, life: int) -> bool:
        is_listed = server in state.members or not self.rules.joins_before_it_counts
        return is_listed and (life == 0 or not self.rules.knows_lives)

    def _fence(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        """Any driver may ask at any time, so the question is no message of its own."""
        server = state.servers[index]
        if server.unsynced and self.rules.fences_in_order:
            return
        if server.noted.stage is not Stage.SETTLED:
            noted = self.rules.fence(server.noted)
            answer = Fenced(index, server.life, self.rules.fence_answer(noted))
            fenced = server._replace(noted=noted)
            yield f"server {index} is fenced", _with(state, index, fenced, answer)

    # Faults.

    def _go_wrong(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        server = state.servers[index]
        if state.crashes < self.bounds.crashes:
            yield f"server {index} restarts", self._restarted(state, index)
        if state.damages < self.bounds.damages:
            for at, entry in enumerate(server.disk):
                disk = (*server.disk[:at], WRONG, *server.disk[at + 1 :])
                if entry != WRONG:
                    noted = server.noted
                    if at < noted.end.seq:
                        noted = noted.damaged(prefix_of(disk[:at]))
                    damaged = server._replace(disk=disk, noted=noted)
                    after = _with(state, index, damaged)
                    yield (
                        f"entry {at + 1} of server {index} is damaged",
                        after._replace(damages=state.damages + 1),
                    )
        if state.losses < self.bounds.losses:
            lost = Server(life=server.life + 1)
            after = _with(state, index, lost)
            yield (
                f"server {index} loses its data directory",
                after._replace(losses=state.losses + 1),
            )

    def _restarted(self, state: State, index: int) -> State:
        server = state.servers[index]
        noted = server.noted
        if noted.stage is Stage.FENCED and not self.rules.keeps_fences:
            noted = Replica(Stage.OPEN, noted.end, noted.highest_seq, noted.committed_seq)
        server = server._replace(unsynced=(), noted=noted)
        if server.in_office:
            acks = _at((0,) * self.server_count, index, len(server.disk))
            stays = not self.rules.ends_with_its_process
            server = server._replace(
                in_office=stays, acks=acks if stays else (), appended=server.disk if stays else ()
            )
        return _with(state, index, server)._replace(crashes=state.crashes + 1)

    # Placement drivers.

    def _drive(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        driver = state.drivers[index]
        if state.term < self.bounds.terms:
            leading = Driver(state.term + 1, state.members)
            drivers = _at(state.drivers, index, leading)
            yield f"driver {index} leads", state._replace(term=state.term + 1, drivers=drivers)
        if not driver.term:
            return
        if driver.term != state.term and self.rules.guards_writes_by_term:
            return
        newcomers = frozenset(range(self.server_count)) - state.members
        if newcomers and not state.decisions:
            members = state.members | newcomers
            drivers = _at(state.drivers, index, driver._replace(members=members))
            yield (
                f"driver {index} lets {set(newcomers)} join",
                state._replace(members=members, drivers=drivers),
            )
        if not state.decisions or not self.rules.first_decision_stands:
            for end in self._possible_ends(state, driver.members):
                after = state._replace(decisions=(*state.decisions, _LOG_OF[end]))
                yield f"driver {index} decides {end.seq}", after

    def _possible_ends(self, state: State, members: frozenset[int]) -> set[Prefix]:
        answers: dict[int, list[FenceAnswer]] = {}
        for message in state.network:
            if isinstance(message, Fenced) and message.server in members:
                is_member = message.life == 0 or not self.rules.knows_lives
                if is_member:
                    answers.setdefault(message.server, []).append(message.answer)
        ends = set()
        for count in range(1, len(answers) + 1):
            for chosen in combinations(answers.values(), count):
                for some in _products(chosen):
                    end = self.rules.decided_end(some, len(members), self.ack_count)
                    if end is not None:
                        ends.add(end)
        return ends

    # Settling.

    def _settle(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        server = state.servers[index]
        if not state.decisions or server.noted.stage is not Stage.FENCED or server.life:
            return
        decided = prefix_of(state.decisions[-1])
        sources: list[Log] = [server.disk]
        sources += [other.disk for at, other in enumerate(state.servers) if at != index]
        for disk in sources:
            log = disk[: decided.seq]
            is_right = prefix_of(log) == decided
            if len(log) == decided.seq and (is_right or not self.rules.compares_digests):
                noted = server.noted.settled(prefix_of(log))
                settled = server._replace(disk=log, unsynced=(), noted=noted, in_office=False)
                yield f"server {index} settles", _with(state, index, settled)

    def _acknowledge_settled(self, state: State) -> Iterator[tuple[str, State]]:
        """The primary acknowledges what it appended and the decided end contains."""
        primary = state.servers[PRIMARY]
        if primary.noted.stage is not Stage.SETTLED:
            return
        kept = primary.appended[: primary.noted.end.seq]
        settled = [each for each in state.servers if each.noted.stage is Stage.SETTLED]
        is_enough = len(settled) >= self.ack_count or not self.rules.waits_for_settled
        if len(kept) <= len(state.acknowledged) or not is_enough:
            return
        durable = [each.noted.highest_seq for each in state.servers]
        if replication.committed_seq(durable, self.ack_count) < len(kept):
            raise BrokenPromiseError(f"{kept} is acknowledged, and on too few disks")
        yield "the settled entries are acknowledged", state._replace(acknowledged=kept)

    # Observations of the writer and the reader.

    def _observed(self, state: State) -> State:
        primary = state.servers[PRIMARY]
        if primary.in_office:
            counted = [
                seq
                for at, seq in enumerate(primary.acks)
                if at in state.members or not self.rules.joins_before_it_counts
            ]
            seq = self.rules.committed_seq(counted, self.ack_count)
            noted = primary.noted.knowing(seq)
            if noted != primary.noted:
                state = _with(state, PRIMARY, primary._replace(noted=noted), Committed(seq))
                if seq > len(state.acknowledged):
                    state = state._replace(acknowledged=primary.appended[:seq])
        for server in state.servers:
            seen = server.log[: self.rules.readable_seq(server.noted)]
            shared = min(len(seen), len(state.seen))
            if seen[:shared] != state.seen[:shared]:
                raise BrokenPromiseError(f"readers differ: {state.seen} and {seen}")
            if len(seen) > len(state.seen):
                state = state._replace(seen=seen)
        self._check(state)
        return state

    def _check(self, state: State) -> None:
        if len(state.decisions) > 1:
            raise BrokenPromiseError(f"decided twice: {state.decisions}")
        for decided in state.decisions:
            if decided[: len(state.acknowledged)] != state.acknowledged:
                raise BrokenPromiseError(f"{state.acknowledged} is acknowledged, {decided} is kept")
            if decided[: len(state.seen)] != state.seen:
                raise BrokenPromiseError(f"{state.seen} was read, {decided} is kept")


def explore(model: Model) -> int:
    """Visit every state that can be reached; return how many.

    Raises BrokenPromiseError with one way to a state that breaks a promise.
    """
    start = model.start()
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        steps = model.steps(state)
        try:
            for name, after in steps:
                if after not in came_from:
                    came_from[after] = (state, name)
                    waiting.append(after)
        except BrokenPromiseError as error:
            raise BrokenPromiseError(f"{error}, after {_way_to(state, came_from)}") from None
    return len(came_from)


def _way_to(state: State, came_from: dict[State, tuple[State, str] | None]) -> str:
    names: list[str] = []
    while (step := came_from[state]) is not None:
        state, name = step
        names.append(name)
    return "; ".join(reversed(names))


def _with(state: State, index: int, server: Server, *sent: Message) -> State:
    servers = (*state.servers[:index], server, *state.servers[index + 1 :])
    return state._replace(servers=servers, network=state.network | set(sent))


def _at(values: tuple[_T, ...], index: int, value: _T) -> tuple[_T, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _products(choices: Sequence[list[FenceAnswer]]) -> Iterator[list[FenceAnswer]]:
    if not choices:
        yield []
        return
    for first in choices[0]:
        for others in _products(choices[1:]):
            yield [first, *others]
