"""Decisions of the placement driver about a replicated range, whatever its replicas answer.

The replicas follow `sbp_core.replication`. They answer in any order, late, never, or after damage,
to several seals at a time. The sealer and its store are real; only the network is not.
"""

import asyncio
import shutil
import tempfile
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from test_joining_model import SameThread

from sbp_core.errors import ConnectError
from sbp_core.pd.metadata.store import open_store
from sbp_core.pd.model import NO_SEQ, NewStream, RangeServerRecord
from sbp_core.pd.server_membership import Membership
from sbp_core.pd.streams.sealing import RangeAnnouncer, Sealer
from sbp_core.replication import Prefix, Replica, committed_seq
from sbp_core.server.runtime import cancel_all
from sbp_core.wire.headers import RangeId, SealRangesResult, Status, StreamRange
from tests.support.clock import ManualClock, examples

NUMBERS = st.integers(0, 30)
SEAL = ContextVar("seal")
"""The number of the seal that a call belongs to."""


class Members:
    """The range servers: replicas of the ranges of one stream, and the calls that wait."""

    def __init__(self):
        self.replicas = {}
        """By (range index, address)."""
        self.calls = []
        self.announced = []

    async def seal(self, address, ranges):
        (asked,) = ranges
        answer = asyncio.get_running_loop().create_future()
        self.calls.append((SEAL.get(), asked, address, answer))
        return {asked.stream_id: await answer}

    async def sync(self, address, ranges):
        self.announced += [(address, each) for each in ranges]


class SealingMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="sbp-sealing-"))
        self.store = open_store(self.folder)
        self.members = Members()
        clock = ManualClock()
        membership = Membership(clock, 1_000)
        for _ in range(5):
            server_id = self.store.servers.allocate_id()
            server = RangeServerRecord(server_id, f"h:{server_id}")
            self.store.servers.register(server)
            membership.refresh(server)
        store = SameThread(self.store)
        announcer = RangeAnnouncer(self.members)
        self.sealer = Sealer(store, membership, announcer, self.members, clock)
        self.seals = []
        self.prefixes = {}
        """By range index: the prefixes of the entries that its primary appended."""
        self.whole_answers = {}
        """By range index and seal: the prefixes that were delivered before the decision."""
        self.committed = {}
        self.decided = {}

    def teardown(self):
        self.loop.run_until_complete(self.sealer.stop())
        self.loop.run_until_complete(cancel_all(self.seals))
        self.loop.close()
        self.store.close()
        shutil.rmtree(self.folder)

    @initialize(member_count=st.integers(2, 4), ack_count=st.integers(1, 4))
    def begin(self, member_count, ack_count):
        ack_count = min(ack_count, member_count)
        new = NewStream("s", member_count, ack_count, 0, tuple(range(1, member_count + 1)))
        ((stream, _),) = self.store.create_streams([new], 0)
        self.stream_id = stream.stream_id
        self.open_replicas()

    def open_replicas(self):
        self.range = self.store.maybe_last_range(self.stream_id)
        index = self.range.range_index
        self.prefixes[index] = [Prefix()]
        self.whole_answers[index] = {}
        self.committed[index] = 0
        self.damages_left, self.losses_left = 2, 2
        for each in self.range.server_ids:
            self.members.replicas[index, f"h:{each}"] = Replica()

    def key(self, number):
        ids = self.range.server_ids
        return self.range.range_index, f"h:{ids[number % len(ids)]}"

    # Range servers.

    @rule(count=st.integers(1, 3), reached=st.lists(st.booleans(), min_size=4, max_size=4))
    def append(self, count, reached):
        """The primary appends entries; some secondaries get those that they do not have yet."""
        primary, *secondaries = (self.key(number) for number in range(len(self.range.server_ids)))
        prefixes = self.prefixes[self.range.range_index]
        for _ in range(count if self.replica(primary).accepts(prefixes[-1]) else 0):
            prefixes.append(prefixes[-1].extended(b"%d" % len(prefixes)))
        behind = [key for key, is_reached in zip(secondaries, reached, strict=False) if is_reached]
        for key in (primary, *behind):
            replica = self.replica(key)
            if replica.accepts(replica.end):
                self.members.replicas[key] = replica.appended(prefixes[-1])
        durable = [
            replica.end.seq
            for replica in map(self.replica, (primary, *secondaries))
            if replica.is_whole
        ]
        committed = committed_seq(durable, self.range.ack_count)
        index = self.range.range_index
        self.committed[index] = max(self.committed[index], committed)

    @precondition(lambda self: self.damages_left)
    @rule(number=NUMBERS, left=st.integers(0, 1))
    def damage(self, number, left):
        self.damages_left -= 1
        key = self.key(number)
        readable = self.prefixes[key[0]][: self.replica(key).end.seq + 1][: left + 1][-1]
        self.members.replicas[key] = self.replica(key).damaged(readable)

    def replica(self, key):
        return self.members.replicas[key]

    # The placement driver and the network.

    @precondition(lambda self: len(self.prefixes[self.range.range_index]) > 1)
    @rule(is_repeat=st.booleans())
    def seal(self, is_repeat):
        SEAL.set(len(self.seals))
        index = self.range.range_index if is_repeat else -1
        self.seals.append(self.loop.create_task(self.sealer.seal([RangeId(self.stream_id, index)])))
        self.settle()

    @precondition(lambda self: self.members.calls)
    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=4))
    def answer(self, numbers):
        """Replicas are fenced, and their answers arrive."""
        for number in numbers[: len(self.members.calls)]:
            self.answer_one(number)

    def answer_one(self, number):
        seal, asked, address, waiting = self.members.calls.pop(number % len(self.members.calls))
        key = asked.range_index, address
        replica = self.members.replicas[key] = self.members.replicas[key].fenced()
        told = replica.fence_answer()
        if told.is_whole and key[0] not in self.decided:
            self.whole_answers[key[0]].setdefault(seal, []).append(told.prefix)
        found = StreamRange(
            self.stream_id, key[0], next_offset=asked.start_offset + 10 * told.prefix.seq
        )
        result = SealRangesResult(
            found,
            Status(),
            self.stream_id,
            b"%d" % told.prefix.seq,
            told.prefix.seq,
            told.prefix.digest,
            not told.is_whole,
        )
        if not waiting.done():
            waiting.set_result(result)
        self.settle()

    @precondition(lambda self: self.members.calls and self.losses_left)
    @rule(number=NUMBERS)
    def lose(self, number):
        self.losses_left -= 1
        *_, waiting = self.members.calls.pop(number % len(self.members.calls))
        if not waiting.done():
            waiting.set_result(ConnectError("scripted"))
        self.settle()

    def settle(self):
        for _ in range(20):
            self.loop.run_until_complete(asyncio.sleep(0))
        found = self.store.ranges_after(
            (self.stream_id, -1), 99, stream_id=self.stream_id, server_id=None
        )
        for each in found:
            if each.end_offset is not None and each.range_index not in self.decided:
                self.decided[each.range_index] = each
                self.check_decision(each)
        if found[-1].range_index != self.range.range_index:
            self.open_replicas()

    def check_decision(self, sealed):
        index = sealed.range_index
        needed = len(sealed.server_ids) - sealed.ack_count + 1
        longest = [
            max(answers, key=lambda each: each.seq)
            for answers in self.whole_answers[index].values()
            if len(answers) >= needed
        ]
        assert Prefix(sealed.end_seq, sealed.end_digest) in longest
        assert sealed.end_offset == sealed.start_offset + 10 * sealed.end_seq
        assert sealed.end_seq >= self.committed[index], "a committed entry is lost"

    @invariant()
    def decisions_stand(self):
        found = (
            self.store.ranges_after(
                (self.stream_id, -1), 99, stream_id=self.stream_id, server_id=None
            )
            if hasattr(self, "stream_id")
            else []
        )
        for each, later in pairwise(found):
            assert each == self.decided[each.range_index]
            assert later.start_offset == each.end_offset
            writers = self.store.writers_before(self.stream_id, later.range_index)
            assert writers in {b"", b"%d" % each.end_seq}
        assert all(each.end_seq == NO_SEQ for each in found[-1:] if each.end_offset is None)

    @invariant()
    def nothing_is_committed_behind_a_decision(self):
        for index, sealed in self.decided.items():
            assert self.committed[index] <= sealed.end_seq

    @invariant()
    def seals_end_without_a_fault(self):
        for task in self.seals:
            if task.done():
                task.result()


SealingMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
TestSealingMachine = SealingMachine.TestCase
