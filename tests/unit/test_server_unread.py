"""Answers that peers do not read: how many wait, for how long, and what waits because of them."""

import asyncio

from sbp_core import limits
from sbp_core.server.outgoing import Backlog, Unread
from tests.support.clock import ManualClock

OWN = limits.CONNECTION_UNREAD_OWN_BYTES
STALL_MS = limits.WRITE_STALL_MS
CONTENDED_MS = limits.WRITE_STALL_CONTENDED_MS
SOME = limits.UNREAD_PROGRESS_BYTES
MIB = limits.MIB


class Peer:
    """A connection whose transport holds `size` bytes."""

    def __init__(self, unread):
        self.size = 0
        self.unread = unread
        self.backlog = Backlog(lambda: self.size)

    def send(self, size):
        self.size += size
        self.unread.add(self.backlog, size)

    def read(self, size):
        self.size -= size


class Bench:
    def __init__(self, bytes_max=8 * MIB):
        self.clock = ManualClock()
        self.unread = Unread(bytes_max, self.clock.monotonic)

    def peer(self):
        return Peer(self.unread)

    def is_overdue(self, peer, ms, *, is_contended=False):
        self.clock.advance(ms)
        self.unread.look()
        return peer.backlog.is_overdue(self.clock.monotonic(), is_contended=is_contended)


def test_a_peer_that_reads_all_in_time_is_never_overdue():
    bench = Bench()
    peer = bench.peer()
    for _ in range(3):
        peer.send(3 * MIB)
        assert not bench.is_overdue(peer, STALL_MS)
        peer.read(3 * MIB)
        assert not bench.is_overdue(peer, STALL_MS)


def test_a_peer_that_reads_a_byte_now_and_then_is_overdue_all_the_same():
    bench = Bench()
    peer = bench.peer()
    peer.send(MIB)
    for _ in range(10):
        peer.read(1)
        assert not bench.is_overdue(peer, STALL_MS // 10)
    assert bench.is_overdue(peer, 1)


def test_while_others_wait_it_is_overdue_sooner_unless_it_reads_on():
    bench = Bench()
    peer = bench.peer()
    peer.send(4 * MIB)
    for _ in range(4):
        assert not bench.is_overdue(peer, CONTENDED_MS, is_contended=True)
        peer.read(SOME)
        assert not bench.is_overdue(peer, 0, is_contended=True)
    assert not bench.is_overdue(peer, CONTENDED_MS, is_contended=True)
    assert bench.is_overdue(peer, 1, is_contended=True)
    assert not bench.is_overdue(peer, 0, is_contended=False)


def test_a_connection_with_little_unread_is_not_limited():
    bench = Bench()
    peer = bench.peer()
    peer.send(OWN)
    assert not bench.is_overdue(peer, STALL_MS, is_contended=True)
    assert bench.is_overdue(peer, 1)


def test_at_the_bound_large_answers_wait_and_small_ones_of_who_reads_do_not():
    bench = Bench()
    deaf, reader = bench.peer(), bench.peer()
    assert bench.unread.has_room(reader.backlog, 8 * MIB)
    deaf.send(5 * MIB)
    assert bench.unread.has_room(reader.backlog, 3 * MIB)
    assert not bench.unread.has_room(reader.backlog, 4 * MIB)
    deaf.send(3 * MIB)
    assert bench.unread.is_full
    assert bench.unread.has_room(reader.backlog, OWN)
    assert not bench.unread.has_room(reader.backlog, OWN + 1)
    assert not bench.unread.has_room(deaf.backlog, 0)
    deaf.read(8 * MIB)
    bench.unread.look()
    assert bench.unread.total_bytes == 0
    assert bench.unread.has_room(reader.backlog, 20 * MIB), "one in any case"


def run(body):
    async def main():
        bench = Bench()
        await body(bench)
        bench.unread.close()

    asyncio.run(asyncio.wait_for(main(), 30))


class Answer:
    """An answer that waits for room, and keeps it until the test says that it was sent."""

    def __init__(self, peer, size):
        self.is_made = False
        self.sent = asyncio.Event()
        self.task = asyncio.create_task(self._make(peer, size))

    async def _make(self, peer, size):
        async with peer.unread.room(peer.backlog, size):
            self.is_made = True
            await self.sent.wait()


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_response_counts_from_its_making_until_it_is_sent():
    async def body(bench):
        first, second = (Answer(bench.peer(), 5 * MIB) for _ in range(2))
        small = Answer(bench.peer(), OWN)
        await settle()
        assert (first.is_made, second.is_made, small.is_made) == (True, False, True)
        assert bench.unread.is_contended
        first.sent.set()
        await settle()
        assert second.is_made
        second.sent.set()
        small.sent.set()
        await asyncio.gather(first.task, second.task, small.task)
        assert bench.unread.total_bytes == 0

    run(body)


def test_answers_have_their_room_in_the_order_in_which_they_asked():
    async def body(bench):
        answers = [Answer(bench.peer(), size * MIB) for size in (8, 6, 1, 1)]
        for expected in ([1, 0, 0, 0], [1, 1, 1, 1]):
            await settle()
            assert [answer.is_made for answer in answers] == [*map(bool, expected)]
            answers[0].sent.set()
        for answer in answers:
            answer.sent.set()
            await answer.task
        assert bench.unread.total_bytes == 0

    run(body)


def test_a_caller_that_gives_up_returns_its_share_at_any_time():
    async def body(bench):
        deaf = bench.peer()
        deaf.send(8 * MIB)
        waiting, granted = Answer(bench.peer(), MIB), Answer(bench.peer(), MIB)
        await settle()
        waiting.task.cancel()
        await settle()
        bench.unread.forget(deaf.backlog)
        granted.task.cancel()  # in the moment in which it has its room
        await asyncio.gather(waiting.task, granted.task, return_exceptions=True)
        assert not granted.is_made
        assert bench.unread.total_bytes == 0
        assert not bench.unread.is_contended

    run(body)


def test_a_cancelled_answer_gives_back_no_room_that_it_never_had():
    async def body(bench):
        deaf = bench.peer()
        deaf.send(8 * MIB)
        left = Answer(bench.peer(), MIB)
        await settle()
        left.task.cancel()
        bench.unread.forget(deaf.backlog)  # its task did not run yet
        await asyncio.gather(left.task, return_exceptions=True)
        assert bench.unread.total_bytes == 0

    run(body)


def test_echoes_leave_half_of_the_room_and_delay_no_other():
    async def body(bench):
        assert bench.unread.may_begin_echo(4 * MIB)
        assert not bench.unread.may_begin_echo(1)
        told = []
        bench.unread.when_echo(MIB, lambda: told.append(bench.unread.may_begin_echo(MIB)))
        assert not bench.unread.is_contended
        bench.unread.give_back(4 * MIB)
        assert told == [True]
        bench.unread.give_back(MIB)
        assert bench.unread.total_bytes == 0

    run(body)


def test_it_is_noticed_that_a_peer_reads_again():
    async def body(bench):
        deaf = bench.peer()
        deaf.send(8 * MIB)
        went_on = asyncio.Event()
        bench.unread.when_read(went_on.set)
        deaf.read(MIB)
        await went_on.wait()
        assert not bench.unread.is_contended

    run(body)
