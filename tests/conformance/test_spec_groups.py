"""JOIN_GROUP, GROUP_HEARTBEAT, LEAVE_GROUP and DESCRIBE_GROUP, an extension."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field

import pytest

from sbp_core.errors import InvalidRequestError, MemberUnknownError, StatusCode, StreamNotHeldError
from sbp_core.wire.headers import (
    CommitCursorsRequest,
    CreateStreamsRequest,
    Cursor,
    DeleteStreamsRequest,
    DescribeGroupRequest,
    GroupHeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    Stream,
)
from sbp_core.wire.opcodes import Opcode

MS = 10_000
POLL_SECONDS = 0.05


@dataclass
class Consumer:
    """A member as the protocol describes it; it gives streams up when `beat` says so."""

    pd: object
    group: str
    member_id: str
    generation: int = -1
    reads: tuple[int, ...] = ()

    async def join(self, *patterns, session_timeout_ms=60_000):
        request = JoinGroupRequest(MS, self.group, self.member_id, patterns, session_timeout_ms)
        (answer,) = await self.pd.ask(Opcode.JOIN_GROUP, request)
        self.generation, self.reads = answer.generation, answer.stream_ids
        return self

    async def ask(self, *, generation=None, reads=None):
        """Send a heartbeat, and return the answer; it changes nothing here."""
        request = GroupHeartbeatRequest(
            MS,
            self.group,
            self.member_id,
            self.generation if generation is None else generation,
            self.reads if reads is None else tuple(reads),
        )
        (answer,) = await self.pd.ask(Opcode.GROUP_HEARTBEAT, request)
        return answer

    async def beat(self):
        answer = await self.ask()
        self.generation, self.reads = answer.generation, answer.stream_ids
        return self.reads

    async def wait_for(self, stream_ids):
        """Send heartbeats until these streams are assigned; the test has a timeout."""
        while True:
            if list(await self.beat()) == stream_ids:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def leave(self):
        await self.pd.ask(Opcode.LEAVE_GROUP, LeaveGroupRequest(MS, self.group, self.member_id))

    async def commit(self, *stream_ids, generation=None):
        generation = self.generation if generation is None else generation
        return await commit(self.pd, self.group, stream_ids, self.member_id, generation)


async def commit(pd, group, stream_ids, member_id=None, generation=-1):
    cursors = tuple(Cursor(each, 1) for each in stream_ids)
    request = CommitCursorsRequest(MS, group, cursors, member_id, generation)
    answers = await pd.ask(Opcode.COMMIT_CURSORS, request)
    return [cursor.status.code for answer in answers for cursor in answer.cursors]


@dataclass
class World:
    """A group that no other test has, and streams that match its pattern."""

    pd: object
    prefix: str = field(default_factory=lambda: f"conformance-{secrets.token_hex(8)}")
    stream_ids: list[int] = field(default_factory=list)

    @property
    def pattern(self):
        return f"{self.prefix}.*"

    async def create(self, count):
        first = len(self.stream_ids)
        new = [Stream(name=f"{self.prefix}.{first + n}", replica_nums=1) for n in range(count)]
        answers = await self.pd.ask(Opcode.CREATE_STREAMS, CreateStreamsRequest(MS, tuple(new)))
        found = [each.stream.stream_id for one in answers for each in one.create_responses]
        self.stream_ids += found
        return found

    def consumer(self, member_id):
        return Consumer(self.pd, self.prefix, member_id)

    async def members(self):
        request = DescribeGroupRequest(MS, self.prefix)
        answers = await self.pd.ask(Opcode.DESCRIBE_GROUP, request)
        return {each.member_id: each for answer in answers for each in answer.members}

    async def delete(self):
        for member_id in await self.members():
            await self.consumer(member_id).leave()
        request = DeleteStreamsRequest(MS, tuple(map(Stream, self.stream_ids)))
        await self.pd.ask(Opcode.DELETE_STREAMS, request)


@pytest.fixture
def world(target):
    """Runs a test with new streams, and a group of its own."""

    def run(test, count=0):
        async def body(target):
            async with target.pd() as pd:
                made = World(pd)
                await made.create(count)
                try:
                    await test(made)
                finally:
                    await made.delete()

        target.run(body)

    return run


def test_streams_are_shared_evenly_and_move_once_they_are_given_up(world):
    """Rule: group-balance, group-handover."""

    async def body(world):
        a = await world.consumer("a").join(world.pattern)
        assert list(a.reads) == world.stream_ids
        b = await world.consumer("b").join(world.pattern)
        assert b.reads == ()
        assert len((await a.ask()).stream_ids) == 2
        assert await b.beat() == ()
        before = a.generation
        kept = (await a.ask()).stream_ids
        await a.ask(generation=before, reads=kept)  # from before it learned what to give up
        assert await b.beat() == ()
        await a.beat()  # it learns
        await a.beat()  # it has given them up
        assert sorted([*a.reads, *await b.beat()]) == world.stream_ids
        assert len(b.reads) == 2
        await a.leave()
        assert list(await b.beat()) == world.stream_ids

    world(body, count=4)


def test_new_streams_that_match_are_assigned(world):
    """Rule: group-new-streams."""

    async def body(world):
        a = await world.consumer("a").join(world.pattern)
        assert a.reads == ()
        await world.create(2)
        await a.wait_for(world.stream_ids)

    world(body)


def test_a_silent_member_is_expelled_and_changes_nothing_any_more(world):
    """Rule: group-expel, cursor-member."""

    async def body(world):
        a = await world.consumer("a").join(world.pattern, session_timeout_ms=1_000)
        b = await world.consumer("b").join(world.pattern)
        assert await a.commit(*world.stream_ids) == [0, 0]
        await b.wait_for(world.stream_ids)
        for late in (a.beat(), a.commit(world.stream_ids[0])):
            with pytest.raises(MemberUnknownError):
                await late
        earlier = a.generation
        await a.join(world.pattern)
        assert a.generation > earlier
        with pytest.raises(MemberUnknownError):
            await a.commit(world.stream_ids[0], generation=earlier)

    world(body, count=2)


def test_a_cursor_is_committed_by_the_member_that_holds_the_stream(world):
    """Rule: cursor-member, cursor-without-member."""

    async def body(world):
        one, two = world.stream_ids
        assert await commit(world.pd, world.prefix, [one]) == [0]
        a = await world.consumer("a").join(world.pattern)
        first = a.generation
        b = await world.consumer("b").join(world.pattern)
        for _ in range(2):
            assert await a.commit(one, two) == [0, 0]
            await a.beat()
        assert await b.beat() == (two,)
        assert await a.commit(one, two) == [0, StatusCode.STREAM_NOT_HELD]
        assert await b.commit(one, two) == [StatusCode.STREAM_NOT_HELD, 0]
        await b.leave()
        assert await a.beat() == (one, two)
        assert await a.commit(one, two, generation=first) == [0, StatusCode.STREAM_NOT_HELD]
        with pytest.raises(StreamNotHeldError):
            await commit(world.pd, world.prefix, [one])
        await a.leave()
        assert await commit(world.pd, world.prefix, [one]) == [0]

    world(body, count=2)


def test_a_join_and_a_leave_may_be_repeated(world):
    """Rule: join-again, leave-again."""

    async def body(world):
        a = await world.consumer("a").join(world.pattern, session_timeout_ms=1_000)
        before = a.generation, a.reads
        await a.join(world.pattern, session_timeout_ms=1_000)
        assert (a.generation, a.reads) == before
        await a.join(f"{world.prefix}.1", "*", session_timeout_ms=30_000)
        (member,) = (await world.members()).values()
        assert member.patterns == (f"{world.prefix}.1", "*")
        assert (member.session_timeout_ms, member.stream_ids) == (30_000, a.reads)
        assert set(a.reads) >= set(world.stream_ids)
        for _ in range(2):
            await a.leave()
        assert await world.members() == {}

    world(body, count=2)


@pytest.mark.parametrize(
    "changed",
    [
        {"group": "a b"},
        {"member_id": ""},
        {"member_id": "a b"},
        {"member_id": "x" * 65},
        {"patterns": ()},
        {"patterns": ("a*b",)},
        {"patterns": ("a b",)},
        {"session_timeout_ms": 999},
        {"session_timeout_ms": 1_800_001},
        {"handover_timeout_ms": -1},
    ],
    ids=str,
)
def test_a_member_needs_names_patterns_and_timeouts_that_make_sense(world, changed):
    """Rule: join-refused."""

    async def body(world):
        fields = {"group": world.prefix, "member_id": "m", "patterns": ("a",)} | changed
        with pytest.raises(InvalidRequestError):
            await world.pd.ask(Opcode.JOIN_GROUP, JoinGroupRequest(MS, **fields))
        assert await world.members() == {}

    world(body)
