"""The members of consumer groups, and the streams that they hold: tables `consumer_groups` etc."""

from __future__ import annotations

from dataclasses import astuple

from sbp_core.pd.groups.group import Group, Holding, Member
from sbp_core.pd.metadata.database import Database
from sbp_core.pd.metadata.tables import consumer_groups, group_members, group_streams


class GroupTables:
    """The groups that have members; a deleted stream deletes its holdings."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def names(self) -> list[str]:
        """Return the names of the groups that have members."""
        return [row.group_name for row in self._database.rows(consumer_groups)]

    def names_after(self, name: str, count_max: int) -> list[str]:
        """Return up to `count_max` names of groups with members that come after `name`."""
        rows = self._database.page(consumer_groups, (name,), count_max)
        return [row.group_name for row in rows]

    def has_members(self, name: str) -> bool:
        """Whether a group has members."""
        return self._database.has(consumer_groups, group_name=name)

    def maybe_group(self, name: str, member_id: str | None = None) -> Group | None:
        """Return a group, or the part that concerns one member; None if it has no members."""
        chosen = {} if member_id is None else {"member_id": member_id}
        found = self._database.maybe_row(consumer_groups, group_name=name)
        if found is None:
            return None
        members = (
            Member(member_id, tuple(patterns.split()), *rest)
            for _, member_id, patterns, *rest in self._database.rows(
                group_members, group_name=name, **chosen
            )
        )
        holdings = (
            Holding(*row)
            for _, *row in self._database.rows(group_streams, group_name=name, **chosen)
        )
        return Group(
            found.generation,
            {each.member_id: each for each in members},
            {each.stream_id: each for each in holdings},
        )

    def change(self, name: str, before: Group, after: Group) -> None:
        """Store a group, or what of it concerns one member, that was as `before`."""
        with self._database.transaction():
            if not after.members:
                self._database.remove(consumer_groups, group_name=name)
                return
            self._database.put(consumer_groups, name, after.generation)
            for member_id in before.members.keys() - after.members.keys():
                self._database.remove(group_members, group_name=name, member_id=member_id)
            for member_id, member in after.members.items():
                if member != before.members.get(member_id):
                    _, patterns, *rest = astuple(member)
                    self._database.put(group_members, name, member_id, " ".join(patterns), *rest)
            for stream_id in before.holdings.keys() - after.holdings.keys():
                self._database.remove(group_streams, group_name=name, stream_id=stream_id)
            for stream_id, holding in after.holdings.items():
                if holding != before.holdings.get(stream_id):
                    self._database.put(group_streams, name, *astuple(holding))
