"""The consumer groups that this gateway coordinates, with their timers and limits.

Only groups with members are here, and only in memory: when a gateway starts again, its members get
UNKNOWN_MEMBER_ID, join again, and go on from the committed offsets, which are in the cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from kio.schema.errors import ErrorCode

from sbp_core.group_limits import MEMBERS_MAX
from sbp_core.kafka.groups.group import INITIAL_DELAY_S, Group
from sbp_core.kafka.groups.member import Joined, Joining, Synced, Syncing
from sbp_core.kafka.groups.refusals import GroupRights
from sbp_core.limits import KIB, MIB

T = TypeVar("T")

MEMBER_BYTES_MAX: Final = 256 * KIB
"""Bytes that a member says about itself, and bytes of its assignment."""
GROUPS_BYTES_MAX: Final = 256 * MIB
"""Bytes of all members of all groups."""


@dataclass(slots=True)
class _Held:
    """A group, what it counts towards the limits, and when it has to be looked at."""

    group: Group
    member_count: int = 0
    size_bytes: int = 0
    deadline: float = float("inf")
    timer: asyncio.TimerHandle | None = None


class Groups:
    """The groups, by name. All methods have to be called on one event loop."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        initial_delay_s: float = INITIAL_DELAY_S,
    ) -> None:
        self.rights = GroupRights()
        self._clock = clock
        self._initial_delay_s = initial_delay_s
        self._held: dict[str, _Held] = {}
        self._member_count = 0
        self._size_bytes = 0
        self._commits: dict[str, set[asyncio.Future[None]]] = {}
        self.is_closed = False

    def names(self) -> list[str]:
        """Return the names of the groups that have members."""
        return [name for name, held in self._held.items() if held.group.members]

    def find(self, name: str) -> Group | None:
        """Return a group that has members, or will have, to look at."""
        held = self._held.get(name)
        return None if held is None else held.group

    async def join(self, name: str, asked: Joining) -> Joined:
        """Answer a JoinGroup request, which may wait for the other members."""
        if self.is_closed:
            return Joined(asked.member_id, ErrorCode.not_coordinator)
        if asked.member_id and name not in self._held:
            return Joined(asked.member_id, ErrorCode.unknown_member_id)
        is_full = self._member_count >= MEMBERS_MAX and not asked.member_id
        if is_full or self._size_bytes + asked.size_bytes > GROUPS_BYTES_MAX:
            return Joined(asked.member_id, ErrorCode.group_max_size_reached)
        answer: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        with self._changing(name) as group:
            group.join(asked, self._clock(), _setter(answer))
        return await answer

    async def sync(self, name: str, asked: Syncing) -> Synced:
        """Answer a SyncGroup request, which may wait for that of the leader."""
        if name not in self._held:
            return Synced(ErrorCode.unknown_member_id)
        if self._size_bytes + sum(map(len, asked.assignments.values())) > GROUPS_BYTES_MAX:
            return Synced(ErrorCode.group_max_size_reached)
        answer: asyncio.Future[Synced] = asyncio.get_running_loop().create_future()
        with self._changing(name) as group:
            group.sync(asked, self._clock(), _setter(answer))
        return await answer

    def heartbeat(
        self, name: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Answer a heartbeat. It puts the deadline of the group off, so its timer stays."""
        group = self.find(name)
        if group is None:
            return ErrorCode.unknown_member_id
        return group.heartbeat(member_id, instance_id, generation, self._clock())

    def leave(self, name: str, leaving: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """Remove members, by id and instance id; return an error code for each."""
        if name not in self._held:
            return [ErrorCode.unknown_member_id] * len(leaving)
        with self._changing(name) as group:
            return group.leave(leaving, self._clock())

    def check_commit(
        self, name: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Return why offsets may not be committed."""
        group = self.find(name)
        if group is None:
            return ErrorCode.none if generation < 0 else ErrorCode.illegal_generation
        return group.check_commit(member_id, instance_id, generation, self._clock())

    @contextmanager
    def committing(self, name: str) -> Iterator[None]:
        """Let `commits_done` wait for the body, a commit that was checked."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        open_commits = self._commits.setdefault(name, set())
        open_commits.add(done)
        try:
            yield
        finally:
            done.set_result(None)
            open_commits.remove(done)
            if not open_commits:
                del self._commits[name]

    async def commits_done(self, name: str) -> None:
        """Return when the commits that were checked before this call have ended.

        Otherwise a member could read the offsets of a generation of which a commit is under way:
        it would read records again, and then the late commit would move its own offsets back.
        """
        open_commits = tuple(self._commits.get(name, ()))
        if open_commits:
            await asyncio.wait(open_commits)

    def close(self) -> None:
        """Forget all groups; requests that wait get NOT_COORDINATOR."""
        self.is_closed = True
        for name in list(self._held):
            with self._changing(name) as group:
                group.close(ErrorCode.not_coordinator, self._clock())

    @contextmanager
    def _changing(self, name: str) -> Iterator[Group]:
        """Give a group, a new one if there is none, to change it, and count what changed."""
        held = self._held.setdefault(name, _Held(Group(self._initial_delay_s)))
        group = held.group
        try:
            yield group
        finally:
            if not group.member_count:
                group.close(ErrorCode.unknown_member_id, self._clock())
                del self._held[name]
            self._count(held)
            self._arm(name, held, group.deadline)

    def _count(self, held: _Held) -> None:
        group = held.group
        self._member_count += group.member_count - held.member_count
        self._size_bytes += group.size_bytes - held.size_bytes
        held.member_count, held.size_bytes = group.member_count, group.size_bytes

    def _arm(self, name: str, held: _Held, deadline: float) -> None:
        if held.timer is not None:
            if deadline == held.deadline:
                return
            held.timer.cancel()
            held.timer = None
        held.deadline = deadline
        if deadline < float("inf"):
            delay_s = max(deadline - self._clock(), 0)
            loop = asyncio.get_running_loop()
            held.timer = loop.call_later(delay_s, self._expire, name, held)

    def _expire(self, name: str, held: _Held) -> None:
        held.timer = None
        with self._changing(name) as group:
            group.expire(self._clock())


def _setter(answer: asyncio.Future[T]) -> Callable[[T], None]:
    """Return a function that sets the result, unless the caller has left."""

    def set_result(result: T) -> None:
        if not answer.done():
            answer.set_result(result)

    return set_result
