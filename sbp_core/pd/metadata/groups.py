"""The members of consumer groups, and the streams that they hold: tables `consumer_groups` etc."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import bindparam, delete, select

from sbp_core.pd.groups.group import Group, Holding, Member
from sbp_core.pd.metadata.database import Database, Put
from sbp_core.pd.metadata.tables import COUNT_MAX, consumer_groups, group_members, group_streams

_NAMES: Final = select(consumer_groups.c.group_name).order_by(consumer_groups.c.group_name)
_NAMES_AFTER: Final = _NAMES.where(consumer_groups.c.group_name > bindparam("after")).limit(
    COUNT_MAX
)
_GENERATION: Final = select(consumer_groups.c.generation).where(
    consumer_groups.c.group_name == bindparam("group_name")
)
_MEMBERS: Final = select(
    group_members.c.member_id,
    group_members.c.patterns,
    group_members.c.session_timeout_ms,
    group_members.c.handover_timeout_ms,
    group_members.c.subject,
    group_members.c.joined,
).where(group_members.c.group_name == bindparam("group_name"))
_HOLDINGS: Final = select(
    group_streams.c.stream_id,
    group_streams.c.member_id,
    group_streams.c.since,
    group_streams.c.revoked,
    group_streams.c.heir,
).where(group_streams.c.group_name == bindparam("group_name"))
_MEMBER: Final = _MEMBERS.where(group_members.c.member_id == bindparam("member_id"))
_HOLDINGS_OF: Final = _HOLDINGS.where(group_streams.c.member_id == bindparam("member_id"))
_PUT_GROUP: Final = Put(consumer_groups)
_PUT_MEMBER: Final = Put(group_members)
_PUT_HOLDING: Final = Put(group_streams)
_DELETE_GROUP: Final = delete(consumer_groups).where(
    consumer_groups.c.group_name == bindparam("group_name")
)
_DELETE_MEMBER: Final = delete(group_members).where(
    group_members.c.group_name == bindparam("group_name"),
    group_members.c.member_id == bindparam("member_id"),
)
_DELETE_HOLDING: Final = delete(group_streams).where(
    group_streams.c.group_name == bindparam("group_name"),
    group_streams.c.stream_id == bindparam("stream_id"),
)


class GroupTables:
    """The groups that have members; a deleted stream deletes its holdings."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._query = database.query

    def names(self) -> list[str]:
        """Return the names of the groups that have members."""
        return [name for (name,) in self._query(_NAMES)]

    def names_after(self, name: str, count_max: int) -> list[str]:
        """Return up to `count_max` names of groups with members that come after `name`."""
        rows = self._query(_NAMES_AFTER, after=name, count_max=count_max)
        return [found for (found,) in rows]

    def has_members(self, name: str) -> bool:
        """Whether a group has members."""
        return bool(self._query(_GENERATION, group_name=name))

    def maybe_group(self, name: str) -> Group | None:
        """Return a group, None if it has no members."""
        generations = self._query(_GENERATION, group_name=name)
        if not generations:
            return None
        members = self._query(_MEMBERS, group_name=name)
        return _group(generations[0][0], members, self._query(_HOLDINGS, group_name=name))

    def maybe_of_member(self, name: str, member_id: str) -> Group | None:
        """Return what of a group concerns one member; None if the group has no members."""
        generations = self._query(_GENERATION, group_name=name)
        if not generations:
            return None
        member = {"group_name": name, "member_id": member_id}
        return _group(
            generations[0][0], self._query(_MEMBER, **member), self._query(_HOLDINGS_OF, **member)
        )

    def change(self, name: str, before: Group, after: Group) -> None:
        """Store a group, or what of it concerns one member, that was as `before`."""
        with self._database.transaction():
            if not after.members:
                self._database.change(_DELETE_GROUP, group_name=name)
                return
            self._database.put(_PUT_GROUP, group_name=name, generation=after.generation)
            for member_id in before.members.keys() - after.members.keys():
                self._database.change(_DELETE_MEMBER, group_name=name, member_id=member_id)
            for member_id, member in after.members.items():
                if member != before.members.get(member_id):
                    self._put_member(name, member)
            for stream_id in before.holdings.keys() - after.holdings.keys():
                self._database.change(_DELETE_HOLDING, group_name=name, stream_id=stream_id)
            for stream_id, holding in after.holdings.items():
                if holding != before.holdings.get(stream_id):
                    self._put_holding(name, holding)

    def _put_member(self, name: str, member: Member) -> None:
        self._database.put(
            _PUT_MEMBER,
            group_name=name,
            member_id=member.member_id,
            patterns=" ".join(member.patterns),
            session_timeout_ms=member.session_timeout_ms,
            handover_timeout_ms=member.handover_timeout_ms,
            subject=member.subject,
            joined=member.joined,
        )

    def _put_holding(self, name: str, holding: Holding) -> None:
        self._database.put(
            _PUT_HOLDING,
            group_name=name,
            stream_id=holding.stream_id,
            member_id=holding.member_id,
            since=holding.since,
            revoked=holding.revoked,
            heir=holding.heir,
        )


def _group(generation: int, members: Sequence[Any], holdings: Sequence[Any]) -> Group:
    return Group(
        generation,
        {each.member_id: each for each in map(_member, members)},
        {row[0]: Holding(*row) for row in holdings},
    )


def _member(row: tuple[str, str, int, int, str | None, int]) -> Member:
    member_id, patterns, session_timeout_ms, handover_timeout_ms, subject, joined = row
    return Member(
        member_id,
        tuple(patterns.split()),
        session_timeout_ms,
        handover_timeout_ms,
        subject,
        joined,
    )
