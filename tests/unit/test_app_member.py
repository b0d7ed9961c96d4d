"""How long the caller of a member may work on a record, by a clock that the test advances."""

import asyncio

from sbp_core.app.aio.assignment import AsyncMember
from sbp_core.client import Membership
from tests.support.clock import until

SESSION_MS, MAX_POLL_MS = 300, 50
BEAT_S = SESSION_MS / 3 / 1000


class Driver:
    """A placement driver that gives all streams to its only member."""

    def __init__(self):
        self.beat_count = 0
        self.joined = []
        self.left = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def join_group(self, group, patterns, *, member_id, session_timeout_ms):
        self.joined.append(member_id)
        await self.may_answer.wait()
        return Membership(group, member_id, 1, (1,), session_timeout_ms)

    async def group_heartbeat(self, membership, held):
        self.beat_count += 1
        return membership

    async def leave_group(self, group, member_id):
        await self.may_answer.wait()
        self.left.append(member_id)


def test_the_bound_counts_from_the_last_record_to_within_a_heartbeat():
    async def body():
        now_s, driver = [0.0], Driver()
        member = AsyncMember(driver, "g", ["a"], SESSION_MS, MAX_POLL_MS, clock=lambda: now_s[0])
        own = frozenset({1})
        assert [await member.own(own), await member.own(own)] == [own, own]
        for _ in range(5):  # a caller that asks no more often than heartbeats are sent
            beat_count = driver.beat_count
            now_s[0] += BEAT_S
            await asyncio.to_thread(until, lambda before=beat_count: driver.beat_count > before)
            assert await member.own(own) == own
        assert driver.left == []
        now_s[0] += BEAT_S + MAX_POLL_MS / 1000 + 0.001
        await asyncio.to_thread(until, lambda: driver.left == driver.joined)
        assert await member.own(own) == frozenset()
        assert await member.own(own) == own  # joined again
        await member.close()
        assert driver.left == driver.joined
        assert len({*driver.left}) == 2

    asyncio.run(asyncio.wait_for(body(), 60))


def test_the_bound_does_not_count_while_the_caller_waits():
    async def body():
        now_s, driver = [0.0], Driver()
        member = AsyncMember(driver, "g", ["a"], SESSION_MS, MAX_POLL_MS, clock=lambda: now_s[0])
        member.is_waiting = lambda: True
        own = frozenset({1})
        assert [await member.own(own), await member.own(own)] == [own, own]
        beat_count = driver.beat_count
        now_s[0] += 10
        await asyncio.to_thread(until, lambda: driver.beat_count > beat_count)
        assert driver.left == []
        await member.close()

    asyncio.run(asyncio.wait_for(body(), 60))


def test_a_join_and_a_leave_that_were_cancelled_go_on_as_the_same_member():
    async def cancelled(call):
        task = asyncio.create_task(call)
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    async def body():
        driver, own = Driver(), frozenset({1})
        member = AsyncMember(driver, "g", ["a"])
        driver.may_answer.clear()
        await cancelled(member.own(own))
        driver.may_answer.set()
        assert [await member.own(own), await member.own(own)] == [own, own]
        driver.may_answer.clear()
        await cancelled(member.close())
        driver.may_answer.set()
        await member.close()
        await member.close()
        assert driver.joined == driver.left * 2

    asyncio.run(asyncio.wait_for(body(), 60))


def test_a_member_whose_join_was_cancelled_leaves_the_group():
    async def body():
        driver = Driver()
        member = AsyncMember(driver, "g", ["a"])
        driver.may_answer.clear()
        joining = asyncio.create_task(member.own(frozenset({1})))
        await asyncio.sleep(0.01)
        joining.cancel()
        driver.may_answer.set()
        await member.close()
        assert driver.left == driver.joined

    asyncio.run(asyncio.wait_for(body(), 60))
