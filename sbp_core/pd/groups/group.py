"""A consumer group: its members, and the member that holds each stream.

    state         members   what it means
    EMPTY         none      anyone with the right commits cursors, as for groups without members
    STABLE        some      each member holds the streams that it is to have
    REBALANCING   some      members are asked to give streams up, which others are to have

A member subscribes to streams, and holds some of them. It sends heartbeats; each answer has the
streams that are assigned to it. The placement driver decides the assignment (assigning.py).

**One holder.** A stream is held by one member at a time: from when it is assigned until the member
has given it up, or is no longer in the group. To move a stream, the placement driver *revokes* it,
and notes the heir: the next answer to the holder leaves the stream out. The holder finishes what it
has read, commits, and its next heartbeat leaves the stream out, too. Then the heir holds it. A
member that is silent for its session timeout, or does not give a stream up within its hand-over
timeout, is expelled. A silent one has stopped before: it counts the session timeout from when it
sent the last heartbeat that was answered, the placement driver from when it came, which is later.

The plan is who holds each stream once everything is given up: the heir of a revoked one. It changes
with members, subscriptions and streams, and not while streams are given up: so a hand-over ends.

**Generations.** Each change of a group raises its generation. Members repeat the generation of the
last answer. It orders what the network may delay:

* A heartbeat gives a revoked stream up only if its member has seen the revocation, a generation
  from `revoked` on. An older heartbeat may come from before the member knew of the stream at all.
* A commit counts only if it is from this holding of the stream, a generation from `since` on. One
  of an older generation is of an earlier holding, perhaps of the same member.
* A request of a generation before its member `joined` is of a member that was expelled in between.

The generations of a group begin at the time, in ms, at which its first member joined. So they go
on above earlier ones, also after the group was empty, and where the metadata were restored from a
backup, which has no members.

Members, holdings and generations are in the metadata, so the next leader goes on with them, and
checks commits by them. Only the times at which members were heard last are in memory
(member_sessions.py), so a new leader waits for one session timeout.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from sbp_core.errors import MemberUnknownError, StreamNotHeldError
from sbp_core.pd.groups.assigning import Eligible, assign
from sbp_core.wire.status import shown


class GroupState(enum.StrEnum):
    """The state of a group, which follows from its members and holdings."""

    EMPTY = "empty"
    STABLE = "stable"
    REBALANCING = "rebalancing"


@dataclass(frozen=True, slots=True)
class Member:
    """A member. Its timeouts are in ms; without a `subject` it may read all streams.

    `patterns` have the form of grants: a name, the begin of names followed by `*`, or `*`.
    """

    member_id: str
    patterns: tuple[str, ...]
    session_timeout_ms: int
    handover_timeout_ms: int
    subject: str | None = None
    joined: int = 0
    """The generation of the group from which on it is a member."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A stream that a member holds since a generation.

    If it is `revoked`, since a generation, its `heir` gets it next, if there is one.
    """

    stream_id: int
    member_id: str
    since: int
    revoked: int | None = None
    heir: str | None = None

    @property
    def planned(self) -> str | None:
        """The member that is to have the stream."""
        return self.member_id if self.revoked is None else self.heir


@dataclass(frozen=True, slots=True)
class Group:
    """A group, or what of it concerns one member: its holdings, and no other members.

    Methods that change it return the group that follows, the same one if nothing changes. Those
    with `eligible` need all of the group, and the streams of each of the members that it has then.
    """

    generation: int
    members: Mapping[str, Member] = field(default_factory=dict)
    holdings: Mapping[int, Holding] = field(default_factory=dict)
    """By stream."""

    @property
    def state(self) -> GroupState:
        """Its state."""
        if not self.members:
            return GroupState.EMPTY
        is_moving = any(each.revoked is not None for each in self.holdings.values())
        return GroupState.REBALANCING if is_moving else GroupState.STABLE

    def assigned(self, member_id: str) -> list[int]:
        """Return the streams that a member is to read, by id."""
        return sorted(each.stream_id for each in self._held(member_id) if each.revoked is None)

    def asked(self, member_id: str) -> int | None:
        """Return the first generation at which a member was to give up what it holds; else None."""
        found = (each.revoked for each in self._held(member_id) if each.revoked is not None)
        return min(found, default=None)

    def member(self, member_id: str, generation: int) -> Member:
        """Return a member that knows a generation.

        Raises MemberUnknownError unless it is in the group since then.
        """
        member = self.members.get(member_id)
        if member is None:
            raise MemberUnknownError.of(
                f"{shown(member_id)} is not a member of the group: it never joined, left, or was"
                " expelled. Read nothing more for it, and join again"
            )
        if not member.joined <= generation <= self.generation:
            raise MemberUnknownError.of(
                f"{shown(member_id)} is a member since generation {member.joined}, the group is at"
                f" {self.generation}, and the request is of generation {generation}: it is from"
                " another life of the group or of the member. Read nothing more for it, and join"
                " again"
            )
        return member

    def check_holds(self, member_id: str, generation: int, stream_id: int) -> None:
        """Raise StreamNotHeldError unless a member holds a stream, and did at a generation."""
        holding = self.holdings.get(stream_id)
        if holding is None or holding.member_id != member_id:
            raise StreamNotHeldError.of(
                f"{shown(member_id)} does not hold stream {stream_id} (any longer): its cursor is"
                " not changed. Read the streams of the last heartbeat's answer only"
            )
        if generation < holding.since:
            raise StreamNotHeldError.of(
                f"{shown(member_id)} holds stream {stream_id} again, since generation"
                f" {holding.since}, and the commit is of generation {generation}: its cursor is not"
                " changed. Read on from the cursor"
            )

    def with_member(self, member: Member, eligible: Eligible) -> Group:
        """Add a member, or change the one with this id, whose holdings stay."""
        known = self.members.get(member.member_id)
        joined = self.generation + 1 if known is None else known.joined
        members = {**self.members, member.member_id: replace(member, joined=joined)}
        return self._next(members, self.holdings, eligible)

    def without_members(self, member_ids: Collection[str], eligible: Eligible) -> Group:
        """Remove members that read nothing any more, or are expelled; others get their streams."""
        members = {key: each for key, each in self.members.items() if key not in member_ids}
        held = {key: each for key, each in self.holdings.items() if each.member_id in members}
        return self._next(members, held, eligible)

    def after_heartbeat(self, member_id: str, generation: int, held: Collection[int]) -> Group:
        """Pass on the revoked streams that a member has given up.

        Its heartbeat is of this generation, and it has `held`.
        """
        following = self.generation + 1
        holdings = dict(self.holdings)
        for each in self._held(member_id):
            is_seen = each.revoked is not None and each.revoked <= generation
            if is_seen and each.stream_id not in held:
                del holdings[each.stream_id]
                if each.heir is not None:
                    holdings[each.stream_id] = Holding(each.stream_id, each.heir, since=following)
        if holdings == self.holdings:
            return self
        return Group(following, self.members, holdings)

    def rebalanced(self, eligible: Eligible) -> Group:
        """Assign the streams that there are now."""
        return self._next(self.members, self.holdings, eligible)

    def _held(self, member_id: str) -> list[Holding]:
        return [each for each in self.holdings.values() if each.member_id == member_id]

    def _next(
        self, members: Mapping[str, Member], held: Mapping[int, Holding], eligible: Eligible
    ) -> Group:
        assert members.keys() == eligible.keys()
        following = self.generation + 1
        planned = {key: each.planned for key, each in held.items()}
        target = assign(eligible, {key: each for key, each in planned.items() if each is not None})
        holdings = {
            stream_id: _decided(each, target.get(stream_id), following)
            for stream_id, each in held.items()
        }
        for stream_id, member_id in target.items():
            if stream_id not in held:
                holdings[stream_id] = Holding(stream_id, member_id, since=following)
        if members == self.members and holdings == self.holdings:
            return self
        return Group(following, members, holdings)


def _decided(holding: Holding, target: str | None, generation: int) -> Holding:
    """Return a holding whose stream a member is to have: revoked unless that is its holder."""
    if target == holding.planned:
        return holding
    if target == holding.member_id:
        return replace(holding, revoked=None, heir=None)
    return replace(holding, revoked=holding.revoked or generation, heir=target)
