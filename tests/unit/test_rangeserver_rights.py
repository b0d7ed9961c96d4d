"""The rights that a range server keeps: how long they hold, and when they are asked again."""

import asyncio
from types import SimpleNamespace

import pytest

from sbp_core.access.identity import Identity
from sbp_core.access.rights import CLAIM_MS, Right
from sbp_core.errors import (
    ConnectError,
    NotFoundError,
    PermissionDeniedError,
    StatusCode,
    ThrottledError,
)
from sbp_core.rangeserver.cached_rights import DENIED_MS, REFRESH_MS, CachedRights
from sbp_core.server.guard import RULES, Target
from sbp_core.wire.headers import (
    AppendInfo,
    AppendRequest,
    CheckRightsResponse,
    FetchInfo,
    FetchRequest,
    Status,
    StreamRights,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.clock import ManualClock

LEASE_MS = 60_000


READ = frozenset({Right.READ})


class World:
    """Rights that a placement driver has, and a range server that asks for them."""

    def __init__(self, **limits):
        self.clock = ManualClock()
        self.granted = {}
        self.asked = []
        self.owners = {}
        self.claimed = []
        self.failure = None
        self.rights = CachedRights(self.ask, self.claim, self.clock, **limits)

    async def ask(self, subject, stream_ids):
        self.asked.append((subject, tuple(stream_ids)))
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        found = (
            StreamRights(each, tuple(self.granted[subject, each]), Status(), f"name-{each}")
            if (subject, each) in self.granted
            else StreamRights(each, status=Status(StatusCode.NOT_FOUND))
            for each in stream_ids
        )
        return [CheckRightsResponse(streams=tuple(found), lease_ms=LEASE_MS)]

    async def claim(self, subject, txn_ids):
        self.claimed.append((subject, sorted(txn_ids)))
        if self.failure is not None:
            raise self.failure
        return {each for each in txn_ids if self.owners.setdefault(each, subject) != subject}

    async def stage(self, subject, *txn_ids, **fields):
        """Outcomes of staged batches, as an APPEND gets them."""
        items = [AppendInfo(stream_id=1, txn_id=each, sequence=0) for each in txn_ids]
        found = self.at_once(subject, Opcode.APPEND, *items, **fields)
        if found is not None:
            return found
        targets = [Target(1, item=each) for each in items]
        identity = Identity(subject, **fields)
        judged = await self.rights.judge(identity, RULES[Opcode.APPEND].rights, targets)
        return [None if each is None else type(each) for each in judged]

    async def judge(self, subject, *stream_ids, rights=READ):
        targets = [Target(each) for each in stream_ids]
        self.found = await self.rights.judge(Identity(subject), rights, targets)
        return [None if each is None else type(each) for each in self.found]

    def at_once(self, subject, opcode, *items, **fields):
        tables = {Opcode.APPEND: AppendRequest, Opcode.FETCH: FetchRequest}
        field = RULES[opcode].items[0]
        standing = SimpleNamespace(identity=Identity(subject, **fields))
        call = SimpleNamespace(opcode=opcode, peer=SimpleNamespace(standing=standing))
        request = tables[opcode](**{field: items})
        found = self.rights.maybe_judge(call, RULES[opcode], request)
        if found is None:
            return None
        return [None if each is None else type(each) for each in found or [None] * len(items)]

    async def settle(self):
        await asyncio.gather(*self.rights._asking.values())


@pytest.fixture
def world():
    return World()


def test_a_decision_is_asked_for_once_by_all_that_wait(world):
    world.granted = {("me", 1): ["read"], ("me", 2): ["append", "later"]}

    async def body():
        found = await asyncio.gather(*(world.judge("me", 1, 2, 3) for _ in range(3)))
        assert found == [[None, PermissionDeniedError, NotFoundError]] * 3
        assert world.asked == [("me", (1, 2, 3))]
        assert await world.judge("me", 1) == [None]
        assert len(world.asked) == 1
        assert await world.judge("you", 1) == [NotFoundError]

    asyncio.run(body())


def test_a_decision_in_use_is_refreshed_and_outlives_its_driver_to_the_end_of_its_lease(world):
    world.granted = {("me", 1): ["read"]}

    async def body():
        fetch = FetchInfo(stream_id=1)
        assert world.at_once("me", Opcode.FETCH, fetch) is None
        await world.judge("me", 1)
        world.failure = ConnectError("the placement driver is down")
        world.clock.advance(REFRESH_MS + 1)
        for count in (2, 3):
            assert world.at_once("me", Opcode.FETCH, fetch) == [None]
            await world.settle()
            assert len(world.asked) == count
        world.clock.advance(LEASE_MS - REFRESH_MS - 2)
        assert world.at_once("me", Opcode.FETCH, fetch) == [None]
        await world.settle()
        world.clock.advance(1)
        assert world.at_once("me", Opcode.FETCH, fetch) is None
        assert await world.judge("me", 1) == [ThrottledError]
        world.failure = None
        assert await world.judge("me", 1) == [None]

    asyncio.run(body())


def test_a_revoked_right_ends_with_the_refresh_and_a_new_one_counts_soon(world):
    world.granted = {("me", 1): ["read"]}

    async def body():
        await world.judge("me", 1)
        world.granted["me", 1] = []
        world.clock.advance(REFRESH_MS + 1)
        assert await world.judge("me", 1) == [None]
        await world.settle()
        assert await world.judge("me", 1) == [PermissionDeniedError]
        world.granted["me", 1] = ["read"]
        assert await world.judge("me", 1) == [PermissionDeniedError]
        world.clock.advance(DENIED_MS + 1)
        assert await world.judge("me", 1) == [None]

    asyncio.run(body())


def test_writers_belong_to_who_used_them_first(world):
    world.granted = {(each, 1): ["append"] for each in ("me", "you")}

    async def body():
        for subject in ("me", "you"):
            await world.judge(subject, 1, rights=RULES[Opcode.APPEND].rights)
        items = [AppendInfo(stream_id=1, writer_id="w", sequence=0), AppendInfo(stream_id=1)]
        assert world.at_once("me", Opcode.APPEND, *items) == [None] * 2
        assert world.at_once("you", Opcode.APPEND, *items) == [PermissionDeniedError, None]

    asyncio.run(body())


def test_a_producer_is_claimed_before_anything_is_staged_and_again_every_hour(world):
    world.granted = {(each, 1): ["append"] for each in ("me", "you")}

    async def body():
        assert await world.stage("me", "p.0.x", "p.1.y", "one") == [None] * 3
        assert world.claimed == [("me", ["one", "p.0.x", "p.1.y"])]
        assert await world.stage("me", "p.2.z", "p.0.x~3", "one") == [None] * 3
        world.failure = ConnectError("the placement driver is down")
        assert await world.stage("me", "q.0.x", "p.0.x") == [ThrottledError, None]
        world.failure = None
        assert await world.stage("you", "p.0.x", "q.0.x") == [PermissionDeniedError, None]
        claimed = len(world.claimed)
        world.clock.advance(CLAIM_MS)
        assert await world.stage("me", "p.0.x") == [None]
        assert len(world.claimed) == claimed + 1

    asyncio.run(body())


def test_nothing_is_claimed_without_the_right_and_administrators_claim_too(world):
    world.granted = {("me", 1): ["read"]}

    async def body():
        assert await world.stage("me", "p.0.x") == [PermissionDeniedError]
        assert world.claimed == []
        for _ in range(2):
            assert await world.stage("root", "p.0.x", is_admin=True) == [None]
        assert world.claimed == [("root", ["p.0.x"])]
        assert await world.stage("other", "p.0.x", is_admin=True) == [PermissionDeniedError]

    asyncio.run(body())


def test_a_refusal_names_the_stream_to_who_has_another_right_on_it(world):
    world.granted = {("me", 1): ["append"], ("me", 2): []}

    async def body():
        assert await world.judge("me", 1, 2) == [PermissionDeniedError] * 2
        append_only, nothing = map(str, world.found)
        assert "read on stream 1 (name-1); an" in append_only
        assert "`sbp acl grant me read name-1`" in append_only
        assert "name-2" not in nothing
        assert "`sbp acl grant me read NAME`; NAME is the name of that stream" in nothing

    asyncio.run(body())


def test_staged_batches_are_not_for_clients(world):
    world.granted = {("me", 1): ["read"]}

    async def body():
        await world.judge("me", 1)
        staged = FetchInfo(stream_id=1, txn_id="p.0.x")
        assert world.at_once("me", Opcode.FETCH, staged) == [PermissionDeniedError]

    asyncio.run(body())


def test_the_decision_that_was_used_longest_ago_is_forgotten():
    world = World(decisions_max=2)
    world.granted = {("me", each): ["read"] for each in (1, 2, 3)}

    async def body():
        await world.judge("me", 1, 2)
        await world.judge("me", 1)
        await world.judge("me", 3)
        assert world.at_once("me", Opcode.FETCH, FetchInfo(stream_id=1)) == [None]
        assert world.at_once("me", Opcode.FETCH, FetchInfo(stream_id=2)) is None

    asyncio.run(body())


def test_streams_without_rights_crowd_out_no_other():
    world = World(decisions_max=1, refusals_max=2)
    world.granted = {("me", 1): ["read"], ("you", 1): []}

    async def body():
        await world.judge("me", 1)
        found = await world.judge("you", *range(1, 9))
        assert found[-2:] == [NotFoundError] * 2
        assert world.at_once("me", Opcode.FETCH, FetchInfo(stream_id=1)) == [None]
        world.granted["you", 8] = ["read"]
        world.clock.advance(DENIED_MS + 1)
        assert await world.judge("you", 8) == [None]
        assert len(world.rights._refusals) <= 2

    asyncio.run(body())
