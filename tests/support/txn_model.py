"""Transactions as values: drivers, a placement driver and two range servers, step by step.

A state is a value that can be hashed, and `steps` returns whatever may happen next: somebody does
the next thing, a message is lost, or arrives late or once more, a driver or the placement driver
dies, a range is sealed. What the placement driver decides, how it publishes, and what a log makes
of its entries is the real code. Range servers lose nothing by dying: what they answer is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from sbp_core.errors import RangeSealedError, SbpError, StatusCode, StatusError, error_for_code
from sbp_core.log.entry import Location
from sbp_core.log.staged import (
    StagedStates,
    Staging,
    TxnEnd,
    commit_entry,
    drop_entry,
    staged_entry,
)
from sbp_core.pd import transactions
from sbp_core.pd.publications import (
    Publication,
    PublicationInput,
    PublicationState,
    publications_of,
)
from sbp_core.pd.transactions import Ledger, Manifest, Part, Verdict
from sbp_core.wire.txn_id import original_of

PRODUCER = "p"
DIGEST = b"12345678"


class ViolationError(AssertionError):
    """Something that must never be so."""


# What is sent; the kind keeps tuples of the same fields apart


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


# What servers and drivers are


class Server(NamedTuple):
    """What one server's log makes of a stream, as a value."""

    stagings: frozenset[tuple[int, str]] = frozenset()
    ends: tuple[TxnEnd, ...] = ()


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
    """Everything. `net` has what was sent and may arrive, once more or late, at any time."""

    drivers: tuple[Driver, ...]
    streams: tuple[Stream, ...]
    servers: tuple[tuple[Server, Server], ...]
    decisions: tuple[Manifest, ...] = ()
    settled: frozenset[tuple[int, int]] = frozenset()
    aborted: frozenset[str] = frozenset()
    publications: tuple[Publication | None, ...] = ()
    net: frozenset[Message] = frozenset()


class Work(NamedTuple):
    """A batch as a driver does it: what it stages, (stream id, transaction's id) each, in order."""

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


# What servers do with a message: the log's own states, from and to values


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


# What may happen


@dataclass(frozen=True)
class World:
    """Who does what, how often ranges are sealed, and the rules; the real ones unless replaced."""

    plans: tuple[tuple[Work, ...], ...]
    stream_count: int = 1
    seals_max: int = 0
    is_replay: Callable[[Ledger, Manifest], bool] = transactions.is_replay
    judge: Callable[[Ledger, Part], Verdict] = transactions.judge
    is_abort_an_outcome: bool = False
    is_timeout_enough: bool = False
    remembers_ends: bool = True
    asks_sealed_ranges: bool = True

    def begin(self) -> State:
        """Return the first state."""
        return State(
            tuple(Driver(index) for index in range(len(self.plans))),
            (Stream(),) * self.stream_count,
            ((Server(), Server()),) * self.stream_count,
            publications=(None,) * self.stream_count,
        )

    def steps(self, state: State) -> Iterator[State]:
        """Yield what may be next. If something is to be published, the first one is a step there.

        Raises ViolationError when that must not be.
        """
        for stream_id in range(self.stream_count):
            yield from self._publish(state, stream_id)
        for index, driver in enumerate(state.drivers):
            if driver.is_alive:
                yield from self._drive(state, index, driver)
        for message in state.net:
            if isinstance(message, Commit):
                yield self._decide(state, message.manifest)[0]
            else:
                yield self._deliver(state, message)[0]
        for stream_id, stream in enumerate(state.streams):
            if stream.sealed < min(stream.known, self.seals_max):
                yield _with_stream(state, stream_id, stream._replace(sealed=stream.sealed + 1))
            elif stream.sealed == stream.known:
                yield _with_stream(state, stream_id, stream._replace(known=stream.known + 1))
        yield from self._sweep(state)
        yield state._replace(
            publications=tuple(self._first(state, each) for each in range(self.stream_count))
        )

    # Drivers

    def _drive(self, state: State, index: int, driver: Driver) -> Iterator[State]:
        """Yield what a driver does next, and that it dies before."""
        works = self.plans[driver.plan]
        yield _with_driver(state, index, driver._replace(is_alive=False))
        if driver.done == len(works):
            return
        work = works[driver.done]
        if len(driver.parts) < len(work.staged):
            stream_id, txn_id = work.staged[len(driver.parts)]
            message = Stage(stream_id, state.streams[stream_id].known - 1, txn_id)
            yield _sent(state, message)
            after, refusal = self._deliver(state, message)
            if refusal is None:
                part = Part(txn_id, stream_id, message.range_index, 1)
                moved = driver._replace(parts=(*driver.parts, part))
            elif isinstance(refusal, RangeSealedError):
                return
            else:
                moved = driver._replace(is_alive=False)
            yield _with_driver(after, index, moved)
            return
        manifest = Manifest(PRODUCER, work.batch_number, driver.parts, len(driver.parts), DIGEST)
        yield _sent(state, Commit(manifest))
        after, refusal, is_replay = self._decide(state, manifest)
        if refusal is not None:
            after = self._abort(after, driver.parts)
            moved = driver._replace(is_alive=False)
        else:
            if is_replay:
                after = self._abort(after, driver.parts)
            moved = driver._replace(done=driver.done + 1, parts=())
            self._check_outcome(after, work.batch_number)
        yield _with_driver(after, index, moved)

    def _check_outcome(self, state: State, batch_number: int) -> None:
        outcomes = [each for each in state.decisions if each.batch_number == batch_number]
        if len(outcomes) != 1 or not outcomes[0].parts:
            raise ViolationError(f"a driver was told that batch {batch_number} is done: {outcomes}")

    # The placement driver

    def _decide(self, state: State, manifest: Manifest) -> tuple[State, SbpError | None, bool]:
        book = Book(state)
        state = _sent(state, Commit(manifest))
        if self.is_replay(book, manifest):
            return state, None, True
        try:
            transactions.check_manifest(manifest)
            transactions.check_parts(book, manifest.parts)
        except SbpError as error:
            return state, error, False
        state = state._replace(decisions=(*state.decisions, manifest))
        heads = tuple(
            head or self._first(state, each) for each, head in enumerate(state.publications)
        )
        return state._replace(publications=heads), None, False

    def _abort(self, state: State, parts: tuple[Part, ...]) -> State:
        """Give up parts; the messages that drop them are on their way then."""
        for part in parts:
            verdict = self.judge(Book(state), part)
            if verdict is Verdict.GIVEN_UP:
                state = state._replace(aborted=state.aborted | {original_of(part.txn_id)})
                if self.is_abort_an_outcome:
                    outcome = Manifest(PRODUCER, int(part.txn_id.split(".")[1]), (), 0, DIGEST)
                    state = state._replace(decisions=(*state.decisions, outcome))
            if verdict is not Verdict.KEPT:
                state = _sent(state, Drop(part.stream_id, part.range_index, part.txn_id))
        return state

    def _sweep(self, state: State) -> Iterator[State]:
        """Yield that a server asks for what it has staged, early or late."""
        for stream_id, servers in enumerate(state.servers):
            for range_index, txn_id in servers[0].stagings | servers[1].stagings:
                if self.is_timeout_enough:
                    yield self._deliver(state, Drop(stream_id, range_index, txn_id))[0]
                for record_count in (-1, 1):
                    part = Part(txn_id, stream_id, range_index, record_count)
                    after = self._abort(state, (part,))
                    if after != state:
                        yield after

    def _publish(self, state: State, stream_id: int) -> Iterator[State]:
        """Yield what the placement driver does next for a stream; first, that it is answered."""
        head = state.publications[stream_id]
        if head is None:
            return
        stream = state.streams[stream_id]
        match head.state:
            case PublicationState.PUBLISHED:
                yield self._settle(state, head)
            case PublicationState.MOVING:
                known = max(stream.known, head.range_index + 2)
                opened = _with_stream(state, stream_id, stream._replace(known=known))
                yield _with_head(opened, head.after(PublicationInput.MOVED))
            case PublicationState.COPYING:
                yield from self._copy(state, head)
            case PublicationState.STUCK:
                raise ViolationError(f"{head} is not as it was committed: {state}")
            case _:
                message = End(stream_id, head.range_index, head.txn_ids)
                after, refusal = self._deliver(state, message)
                yield _learned(after, head, refusal)
                yield _sent(state, message)

    def _first(self, state: State, stream_id: int) -> Publication | None:
        """Return what is to be published first in a stream, as the store has it."""
        for number, manifest in enumerate(state.decisions):
            if (number, stream_id) not in state.settled:
                for publication in publications_of(number, manifest.parts):
                    if publication.stream_id == stream_id:
                        if self.asks_sealed_ranges:
                            return publication
                        last = state.streams[stream_id].known - 1
                        return replace(publication, range_index=last)
        return None

    def _copy(self, state: State, head: Publication) -> Iterator[State]:
        after, refusal = state, None
        for part in head.earlier:
            server = state.servers[part.stream_id][part.range_index % 2]
            if (part.range_index, part.txn_id) in server.stagings and refusal is None:
                message = Stage(part.stream_id, head.range_index, head.id_here(part))
                state = _sent(state, message)
                after, refusal = self._deliver(after, message)
        yield _learned(after, head, refusal)
        yield state

    def _settle(self, state: State, head: Publication) -> State:
        state = state._replace(settled=state.settled | {(head.txn_number, head.stream_id)})
        for part in head.leftovers:
            state = _sent(state, Drop(part.stream_id, part.range_index, part.txn_id))
        assert head.after(PublicationInput.RECORDED).state is PublicationState.SETTLED
        heads = list(state.publications)
        heads[head.stream_id] = self._first(state, head.stream_id)
        return state._replace(publications=tuple(heads))

    # Range servers

    def _deliver(self, state: State, message: Message) -> tuple[State, SbpError | None]:
        """Return the state after a server got a message, and what it answered."""
        stream_id, range_index = message.stream_id, message.range_index
        stream = state.streams[stream_id]
        servers = list(state.servers[stream_id])
        before = servers[range_index % 2]
        is_open = stream.sealed <= range_index < stream.known
        after, refusal, has_published = serve(
            before, message, is_open, remembers=self.remembers_ends
        )
        state = _sent(state, message)
        if after == before:
            return state, refusal
        servers[range_index % 2] = after
        all_servers = list(state.servers)
        all_servers[stream_id] = (servers[0], servers[1])
        state = state._replace(servers=tuple(all_servers))
        if has_published:
            _check_visible(state, message)
            visible = (*stream.visible, *map(original_of, message.txn_ids))
            state = _with_stream(state, stream_id, stream._replace(visible=visible))
        if isinstance(message, Drop):
            _check_dropped(state, message)
        return state, refusal


def _check_visible(state: State, message: End) -> None:
    """Raise ViolationError unless this is what is to be published in the stream next."""
    stream = state.streams[message.stream_id]
    ids = tuple(map(original_of, message.txn_ids))
    expected: list[str] = []
    for manifest in sorted(state.decisions, key=lambda each: each.batch_number):
        named = [part.txn_id for part in manifest.parts if part.stream_id == message.stream_id]
        if tuple(expected) == stream.visible and named:
            if tuple(named) == ids:
                return
            break
        expected += named
    raise ViolationError(f"{ids} became visible behind {stream.visible}: {state}")


def _check_dropped(state: State, message: Drop) -> None:
    """Raise ViolationError if that is needed still."""
    original = original_of(message.txn_id)
    if Book(state).is_named(original, message.stream_id):
        visible = state.streams[message.stream_id].visible
        if original not in visible:
            raise ViolationError(f"{message} takes away what is committed: {state}")


def _learned(state: State, head: Publication, refusal: SbpError | None) -> State:
    learned = head.maybe_learned(refusal)
    return state if learned is None else _with_head(state, head.after(learned))


def _with_head(state: State, head: Publication) -> State:
    heads = list(state.publications)
    heads[head.stream_id] = head
    return state._replace(publications=tuple(heads))


def _with_stream(state: State, stream_id: int, stream: Stream) -> State:
    streams = list(state.streams)
    streams[stream_id] = stream
    return state._replace(streams=tuple(streams))


def _with_driver(state: State, index: int, driver: Driver) -> State:
    drivers = list(state.drivers)
    drivers[index] = driver
    return state._replace(drivers=tuple(drivers))


def _sent(state: State, message: Message) -> State:
    return state if message in state.net else state._replace(net=state.net | {message})


def is_done(state: State) -> bool:
    """Whether everything that was decided is visible, and known to be."""
    return all(head is None for head in state.publications)


def explore(world: World) -> int:
    """Go through all states; return how many there are.

    Raises ViolationError if one must not be, or if something that was decided does not become
    visible though from some state on nothing fails any more.
    """
    begin = world.begin()
    numbers = {begin: 0}
    states = [begin]
    next_of: list[int] = []
    for state in states:
        next_number = -1
        for at, after in enumerate(world.steps(state)):
            number = numbers.setdefault(after, len(states))
            if number == len(states):
                states.append(after)
            if at == 0:
                next_number = number
        next_of.append(-1 if is_done(state) else next_number)
    _check_ends(states, next_of)
    return len(states)


def _check_ends(states: list[State], next_of: list[int]) -> None:
    """Raise ViolationError if the way on without faults ends nowhere for one of the states."""
    has_end = [number < 0 for number in next_of]
    for start in range(len(states)):
        path = []
        number = start
        on_path = set()
        while not has_end[number]:
            if number in on_path:
                raise ViolationError(f"this is never published: {states[number]}")
            on_path.add(number)
            path.append(number)
            number = next_of[number]
        for each in path:
            has_end[each] = True
