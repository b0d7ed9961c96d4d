"""A consumer group as its coordinator sees it: Kafka's classic protocol, without I/O.

    state                members   what happens
    Empty                none      anyone with the right commits offsets
    PreparingRebalance   some      members join again: each JoinGroup request waits for the others
    CompletingRebalance  some      a generation has begun: SyncGroup requests wait for the leader's
    Stable               some      members have their assignments
    Dead                 none      the coordinator has forgotten the group

A member that is new, leaves, is silent for its session timeout, or subscribes to other topics ends
a generation: the group prepares a rebalance. The members learn that from their heartbeats. When all
have joined, or the longest of their rebalance timeouts has passed, the next generation begins
without the members that did not join. The leader gets the subscriptions of all, and its SyncGroup
request has their assignments, which the coordinator passes on without a look.

A *static* member has an instance id. It may be silent, or start again, within its session timeout,
and the generation goes on: the new process takes the place of the old one, which is fenced.
A *dynamic* member gets its id by a first request, and is pending until the second one.

Every method takes the time. `expire` has to be called at `deadline`. A request that waits is
answered by a call of its `reply`, perhaps before the method returns.
"""

from __future__ import annotations

import enum
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from kio.schema.errors import ErrorCode

from sbp_core.group_limits import GROUP_MEMBERS_MAX
from sbp_core.kafka.groups.member import Joined, Joining, Member, Synced, Syncing

INITIAL_DELAY_S: Final = 1.0
"""How long an empty group waits for more members after each new one, before it begins."""
_NAME_LENGTH_MAX: Final = 100
"""Characters of a client's name that are part of the id of a member."""
_NEVER: Final = float("inf")


class GroupState(enum.StrEnum):
    """The state of a group, by the name that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


def _new_id(name: str) -> str:
    return f"{name}-{uuid.uuid4()}"


class Group:
    """A group. `new_id` makes an id of a member that nobody guesses, from a name."""

    def __init__(
        self,
        initial_delay_s: float = INITIAL_DELAY_S,
        new_id: Callable[[str], str] = _new_id,
    ) -> None:
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        """The protocol that the members of the generation have in common."""
        self.leader_id = ""
        self.members: dict[str, Member] = {}
        self._pending: dict[str, float] = {}
        """When the id of a member that has not used it expires."""
        self._opens_at = 0.0
        """The first generation begins at that time at the earliest."""
        self._ends_at = _NEVER
        """When members that have not joined, or have not synced, are dropped."""
        self._initial_delay_s = initial_delay_s
        self._new_id = new_id

    @property
    def member_count(self) -> int:
        """How many members there are, with those that are pending."""
        return len(self.members) + len(self._pending)

    @property
    def size_bytes(self) -> int:
        """How many bytes of requests are kept."""
        return sum(each.asked.size_bytes + len(each.assignment) for each in self.members.values())

    @property
    def deadline(self) -> float:
        """When `expire` has something to do; heartbeats put that off. Infinity for never."""
        sessions = (each.expires_at for each in self.members.values() if not each.is_waiting)
        opening = [self._opens_at] if self._opens_at else []
        return min(self._ends_at, *opening, *self._pending.values(), *sessions, _NEVER)

    def join(self, asked: Joining, now: float, reply: Callable[[Joined], None]) -> None:
        """Add a member, or let a member join again. `reply` gets the answer, perhaps later."""
        error = self._why_no_join(asked)
        if error is not ErrorCode.none:
            reply(Joined(asked.member_id, error))
        elif asked.member_id:
            self._join_again(asked, now, reply)
        else:
            self._join_first(asked, now, reply)

    def sync(self, asked: Syncing, now: float, reply: Callable[[Synced], None]) -> None:
        """Give a member its assignment. `reply` gets the answer, perhaps later."""
        member = self._member_of(asked.member_id, asked.instance_id, asked.generation)
        if isinstance(member, ErrorCode):
            return reply(Synced(member))
        if asked.protocol_type not in {None, self.protocol_type} or asked.protocol not in {
            None,
            self.protocol,
        }:
            return reply(Synced(ErrorCode.inconsistent_group_protocol))
        if self.state is GroupState.PREPARING:
            return reply(Synced(ErrorCode.rebalance_in_progress))
        member.owes_sync = False
        member.wait_for_sync(reply, now)
        if self.state is GroupState.COMPLETING and member.member_id == self.leader_id:
            for each in self.members.values():
                each.assignment = asked.assignments.get(each.member_id, b"")
            self.state = GroupState.STABLE
        if self.state is GroupState.STABLE:
            for each in self.members.values():
                answer = Synced(ErrorCode.none, self.protocol_type, self.protocol, each.assignment)
                each.answer_sync(answer, now)
        if not any(each.owes_sync for each in self.members.values()):
            self._ends_at = _NEVER
        return None

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now: float
    ) -> ErrorCode:
        """Keep a member. REBALANCE_IN_PROGRESS asks it to join again."""
        member = self._member_of(member_id, instance_id, generation)
        if isinstance(member, ErrorCode):
            return member
        member.heard(now)
        is_preparing = self.state is GroupState.PREPARING
        return ErrorCode.rebalance_in_progress if is_preparing else ErrorCode.none

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now: float
    ) -> ErrorCode:
        """Return why offsets may not be committed.

        Members may while they prepare a rebalance, too: so each leaves its partitions to others
        where it has come to. Without members anyone may who names no generation.
        """
        if generation < 0 and not self.members:
            return ErrorCode.none
        member = self._member_of(member_id, instance_id, generation)
        if isinstance(member, ErrorCode):
            return member
        member.heard(now)
        is_completing = self.state is GroupState.COMPLETING
        return ErrorCode.rebalance_in_progress if is_completing else ErrorCode.none

    def leave(self, leaving: Sequence[tuple[str, str | None]], now: float) -> list[ErrorCode]:
        """Remove members, by id and instance id; return an error code for each.

        A static member may be named by its instance id alone.
        """
        codes, left = [], {}
        for member_id, instance_id in leaving:
            code = ErrorCode.none
            if instance_id is None and member_id in self._pending:
                del self._pending[member_id]
            else:
                static = self._static(instance_id)
                known = member_id or (static.member_id if static is not None else "")
                found = self._member(known, instance_id)
                if isinstance(found, ErrorCode):
                    code = found
                else:
                    left[found.member_id] = found
            codes.append(code)
        self._drop(left.values(), now)
        return codes

    def expire(self, now: float) -> None:
        """Drop members that were silent, or that a rebalance waits for in vain."""
        self._pending = {each: until for each, until in self._pending.items() if until > now}
        if self._opens_at <= now:
            self._opens_at = 0.0
        late = {
            each.member_id: each
            for each in self.members.values()
            if not each.is_waiting and each.expires_at <= now
        }
        is_due = self._ends_at <= now
        if is_due and self.state is not GroupState.PREPARING:
            late |= {each.member_id: each for each in self.members.values() if each.owes_sync}
        self._drop(late.values(), now)
        if is_due and self.state is GroupState.PREPARING and self._ends_at <= now:
            self._begin_generation(now)

    def close(self, error: ErrorCode, now: float) -> None:
        """Forget all members; their requests get an error."""
        self.state = GroupState.DEAD
        dropped, self.members, self._pending = self.members, {}, {}
        self.leader_id, self._opens_at, self._ends_at = "", 0.0, _NEVER
        for each in dropped.values():
            each.refuse(error, now)

    def _why_no_join(self, asked: Joining) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        itself = self._static(asked.instance_id) or self.members.get(asked.member_id)
        others = [each for each in self.members.values() if each is not itself]
        common = _common_protocols(others) if others else asked.protocol_names
        is_type_fit = not others or asked.protocol_type == self.protocol_type
        if asked.protocol_type and is_type_fit and common & asked.protocol_names:
            return ErrorCode.none
        return ErrorCode.inconsistent_group_protocol

    def _join_first(self, asked: Joining, now: float, reply: Callable[[Joined], None]) -> None:
        name = asked.client_id if asked.instance_id is None else asked.instance_id
        member_id = self._new_id(name[:_NAME_LENGTH_MAX])
        static = self._static(asked.instance_id)
        if static is not None:
            self._take_place(static, member_id, asked, now, reply)
        elif self.member_count >= GROUP_MEMBERS_MAX:
            reply(Joined("", ErrorCode.group_max_size_reached))
        elif asked.instance_id is None and asked.needs_id:
            self._pending[member_id] = now + asked.session_s
            reply(Joined(member_id, ErrorCode.member_id_required))
        else:
            self._add(member_id, asked, now, reply)

    def _join_again(self, asked: Joining, now: float, reply: Callable[[Joined], None]) -> None:
        if asked.instance_id is None and self._pending.pop(asked.member_id, None) is not None:
            return self._add(asked.member_id, asked, now, reply)
        member = self._member(asked.member_id, asked.instance_id)
        if isinstance(member, ErrorCode):
            return reply(Joined(asked.member_id, member))
        is_changed = asked.protocols != member.asked.protocols
        is_leader = member.member_id == self.leader_id
        if not is_changed and (
            self.state is GroupState.COMPLETING
            or (self.state is GroupState.STABLE and not is_leader)
        ):
            member.wait_for_join(reply, now)  # the answer was lost: it is given again
            return member.answer_join(self._joined(member), now)
        return self._rejoin(member, asked, now, reply)

    def _rejoin(
        self, member: Member, asked: Joining, now: float, reply: Callable[[Joined], None]
    ) -> None:
        """Let a member wait for the next generation."""
        member.asked, self.protocol_type = asked, asked.protocol_type
        member.wait_for_join(reply, now)
        self._prepare(now)
        self._settle(now)

    def _add(
        self, member_id: str, asked: Joining, now: float, reply: Callable[[Joined], None]
    ) -> None:
        member = Member(member_id, asked.instance_id, asked, now + asked.session_s)
        self.members[member_id] = member
        if not self.leader_id:
            self.leader_id = member_id
        if self._opens_at:
            self._opens_at = min(now + self._initial_delay_s, self._ends_at)
        self._rejoin(member, asked, now, reply)

    def _take_place(
        self,
        old: Member,
        member_id: str,
        asked: Joining,
        now: float,
        reply: Callable[[Joined], None],
    ) -> None:
        """Let a static member that has started again take its own place, and fence the old one."""
        old.refuse(ErrorCode.fenced_instance_id, now)
        new = replace(old, member_id=member_id, asked=asked)
        self.members = {
            each.member_id: each
            for each in (new if one is old else one for one in self.members.values())
        }
        was_leader = self.leader_id == old.member_id
        if was_leader:
            self.leader_id = member_id
        was_chosen = (self.protocol_type, self.protocol)
        is_chosen = (asked.protocol_type, self._choose_protocol())
        if self.state is not GroupState.STABLE or is_chosen != was_chosen:
            return self._rejoin(new, asked, now, reply)
        answer = self._joined(new)
        if asked.may_skip:
            answer = replace(answer, skips_assignment=was_leader)
        elif was_leader:  # a leader would assign, and a stable group takes no assignment
            answer = replace(answer, leader_id=old.member_id, members=())
        new.wait_for_join(reply, now)
        return new.answer_join(answer, now)

    def _prepare(self, now: float) -> None:
        """Ask all members to join again, unless they were asked before."""
        if self.state is GroupState.PREPARING:
            return
        longest_s = max(each.asked.rebalance_s for each in self.members.values())
        if self.state is GroupState.EMPTY:
            self._opens_at = now + min(self._initial_delay_s, longest_s)
        self.state = GroupState.PREPARING
        self._ends_at = now + longest_s
        for each in self.members.values():
            each.owes_sync = False
            each.answer_sync(Synced(ErrorCode.rebalance_in_progress), now)

    def _settle(self, now: float) -> None:
        """Begin a generation if all members have joined; notice that no member is left."""
        if not self.members and self.state is not GroupState.DEAD:
            self.state = GroupState.EMPTY
            self.leader_id = self.protocol = self.protocol_type = ""
            self._opens_at, self._ends_at = 0.0, _NEVER
        if self.state is not GroupState.PREPARING or self._opens_at > now or self._pending:
            return
        if all(each.joining is not None for each in self.members.values()):
            self._begin_generation(now)

    def _begin_generation(self, now: float) -> None:
        """Begin a generation with the members that have joined, and with all static members."""
        for each in list(self.members.values()):
            if each.joining is None and each.instance_id is None:
                del self.members[each.member_id]
        joined = [each for each in self.members.values() if each.joining is not None]
        if not self.members:
            return self._settle(now)
        longest_s = max(each.asked.rebalance_s for each in self.members.values())
        self._opens_at, self._ends_at = 0.0, now + longest_s
        if not joined:
            return None  # static members without a process may come back within their sessions
        if all(each.member_id != self.leader_id for each in joined):
            self.leader_id = joined[0].member_id
        self.generation += 1
        self.protocol = self._choose_protocol()
        self.state = GroupState.COMPLETING
        for each in self.members.values():
            each.owes_sync = True
        for each in joined:
            each.answer_join(self._joined(each), now)
        return None

    def _drop(self, members: Collection[Member], now: float) -> None:
        for each in members:
            del self.members[each.member_id]
            each.refuse(ErrorCode.unknown_member_id, now)
        if self.members and self.leader_id not in self.members:
            self.leader_id = next(iter(self.members))
        if members and self.members:
            self._prepare(now)
        self._settle(now)

    def _joined(self, member: Member) -> Joined:
        """Return what a member learns about the generation."""
        is_leader = member.member_id == self.leader_id
        members = tuple(
            (each.member_id, each.instance_id, each.metadata(self.protocol))
            for each in (self.members.values() if is_leader else ())
        )
        return Joined(
            member.member_id,
            ErrorCode.none,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader_id,
            members,
        )

    def _choose_protocol(self) -> str:
        """Return the protocol that most members like best, of those that all members know."""
        common = _common_protocols(self.members.values())
        votes = Counter(
            next(name for name, _ in each.asked.protocols if name in common)
            for each in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def _static(self, instance_id: str | None) -> Member | None:
        if instance_id is None:
            return None
        return next((x for x in self.members.values() if x.instance_id == instance_id), None)

    def _member(self, member_id: str, instance_id: str | None) -> Member | ErrorCode:
        """Return a member, or why the request is not a member's."""
        static = self._static(instance_id)
        if static is not None and static.member_id != member_id:
            return ErrorCode.fenced_instance_id
        member = self.members.get(member_id) if instance_id is None else static
        return ErrorCode.unknown_member_id if member is None else member

    def _member_of(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> Member | ErrorCode:
        """Return a member that knows this generation, or why the request is not a member's."""
        member = self._member(member_id, instance_id)
        if isinstance(member, Member) and generation != self.generation:
            return ErrorCode.illegal_generation
        return member


def _common_protocols(members: Iterable[Member]) -> set[str]:
    return set.intersection(*(each.asked.protocol_names for each in members))
