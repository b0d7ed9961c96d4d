"""Transactions as values: drivers, a placement driver and two range servers, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sbp_core.errors import RangeSealedError, SbpError, StatusCode, error_for_code
from sbp_core.pd.txns import decisions
from sbp_core.pd.txns.decisions import Ledger, Manifest, Part, Verdict
from sbp_core.pd.txns.publications import (
    Publication,
    PublicationInput,
    PublicationState,
    publications_of,
)
from sbp_core.wire.txn_id import original_of
from tests.support.models.transaction_values import (
    Book,
    Commit,
    Driver,
    Drop,
    End,
    Message,
    Server,
    Stage,
    State,
    Stream,
    Work,
    serve,
)

PRODUCER = "p"
DIGEST = b"12345678"


class ViolationError(AssertionError):
    """Something that must never be so."""


# The steps of a world


@dataclass(frozen=True)
class World:
    """The work of each driver, limits of seals and losses, and the rules (default: the real)."""

    plans: tuple[tuple[Work, ...], ...]
    stream_count: int = 1
    seals_max: int = 0
    is_replay: Callable[[Ledger, Manifest], bool] = decisions.is_replay
    judge: Callable[[Ledger, Part], Verdict] = decisions.judge
    is_abort_an_outcome: bool = False
    is_timeout_enough: bool = False
    remembers_ends: bool = True
    asks_sealed_ranges: bool = True
    losses_max: int = 0
    faults: tuple[StatusCode, ...] = ()
    """Errors that servers may answer with nothing lost, as a server at another's address does."""
    asks_before_giving_up: bool = True

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
        if len(state.lost) < self.losses_max:
            yield from _losses(state)
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
            raise ViolationError(
                f"a driver got the answer that batch {batch_number} is done: {outcomes}"
            )

    # The placement driver

    def _decide(self, state: State, manifest: Manifest) -> tuple[State, SbpError | None, bool]:
        book = Book(state)
        state = _sent(state, Commit(manifest))
        if self.is_replay(book, manifest):
            return state, None, True
        try:
            decisions.check_manifest(manifest)
            decisions.check_parts(book, manifest.parts)
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
                for code in self.faults:
                    # The copy reads it as an answer that nothing is staged there.
                    is_answer = code is StatusCode.NOT_FOUND
                    yield _learned(state, head, None if is_answer else error_for_code(code, ""))
            case PublicationState.STUCK if not state.lost and not self.faults:
                raise ViolationError(f"{head} is not as it was committed: {state}")
            case _:
                message = End(stream_id, head.range_index, head.txn_ids)
                after, refusal = self._deliver(state, message)
                if state.lost or self.faults:
                    yield from self._wished(after, head, refusal)
                if state.lost and not self.asks_before_giving_up:
                    yield self._give_up(state, replace(head, state=PublicationState.STUCK))
                yield _learned(after, head, refusal)
                yield _sent(state, message)
                for code in self.faults:
                    yield from self._wished(state, head, error_for_code(code, ""))
                    yield _learned(state, head, error_for_code(code, ""))

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

    def _wished(self, state: State, head: Publication, refusal: SbpError | None) -> Iterator[State]:
        """Yield a request to give up what a server refuses, if that may be."""
        if head.maybe_learned(refusal) is PublicationInput.INCOMPLETE:
            yield self._give_up(state, head.after(PublicationInput.INCOMPLETE))

    def _give_up(self, state: State, head: Publication) -> State:
        """Give up what is stuck; nothing that was sent for it arrives later."""
        _check_lost(state, head)
        named = {part.txn_id for part in head.parts}
        if named & set(state.streams[head.stream_id].visible):
            raise ViolationError(f"{head} is reported as lost, and is visible: {state}")
        key = (head.txn_number, head.stream_id)
        under_way = {each for each in state.net if _is_about(each, head.stream_id, named)}
        state = state._replace(
            net=state.net - under_way,
            settled=state.settled | {key},
            given_up=state.given_up | {key},
        )
        for part in head.remains:
            state = _sent(state, Drop(part.stream_id, part.range_index, part.txn_id))
        assert head.after(PublicationInput.GIVEN_UP).state is PublicationState.SETTLED
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


def _check_lost(state: State, head: Publication) -> None:
    """Raise ViolationError unless a disk has lost something of what is to be published."""
    originals = {(part.range_index, part.txn_id) for part in head.parts}
    here = {(head.range_index, txn_id) for txn_id in head.txn_ids}
    servers = state.servers[head.stream_id]
    for range_index, txn_id in originals | here:
        is_there = (range_index, txn_id) in servers[range_index % 2].stagings
        if not is_there and (head.stream_id, range_index, txn_id) in state.lost:
            return
    raise ViolationError(f"{head} is given up, and nothing of it is lost: {state}")


def _check_visible(state: State, message: End) -> None:
    """Raise ViolationError unless this is what is to be published in the stream next."""
    stream = state.streams[message.stream_id]
    ids = tuple(map(original_of, message.txn_ids))
    expected: list[str] = []
    for number, manifest in sorted(
        enumerate(state.decisions), key=lambda each: each[1].batch_number
    ):
        if (number, message.stream_id) in state.given_up:
            continue
        named = [part.txn_id for part in manifest.parts if part.stream_id == message.stream_id]
        if tuple(expected) == stream.visible and named:
            if tuple(named) == ids:
                return
            break
        expected += named
    raise ViolationError(f"{ids} became visible behind {stream.visible}: {state}")


def _losses(state: State) -> Iterator[State]:
    """Yield that a disk loses something staged: nothing sent to its server before arrives then."""
    for stream_id, servers in enumerate(state.servers):
        for at, server in enumerate(servers):
            arriving = frozenset(
                each
                for each in state.net
                if isinstance(each, Commit)
                or (each.stream_id, each.range_index % 2) != (stream_id, at)
            )
            for staging in server.stagings:
                after = list(servers)
                after[at] = server._replace(stagings=server.stagings - {staging})
                all_servers = list(state.servers)
                all_servers[stream_id] = (after[0], after[1])
                yield state._replace(
                    servers=tuple(all_servers),
                    net=arriving,
                    lost=state.lost | {(stream_id, *staging)},
                )


def _is_about(message: Message, stream_id: int, txn_ids: set[str]) -> bool:
    """Whether a message would stage or publish some of these in a stream."""
    match message:
        case Stage():
            return message.stream_id == stream_id and original_of(message.txn_id) in txn_ids
        case End():
            return message.stream_id == stream_id and not txn_ids.isdisjoint(
                map(original_of, message.txn_ids)
            )
        case _:
            return False


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
