"""The operations on groups with members, on the thread of the store.

A heartbeat and `tend` run on the same thread, so no member is expelled while its heartbeat is
answered. Every operation reads the store, which notices when this placement driver
leads no longer. So no member gets an answer here after another placement driver expelled it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Final

from sbp_core.errors import PermissionDeniedError, StreamNotHeldError, invalid
from sbp_core.group_limits import GROUP_ALL_PATTERNS_MAX, GROUP_MEMBERS_MAX, GROUP_STREAMS_MAX
from sbp_core.pd.groups.assigning import Eligible
from sbp_core.pd.groups.eligibility import KnownStreams, eligible_streams
from sbp_core.pd.groups.group import Group, Member
from sbp_core.pd.groups.member_sessions import Sessions
from sbp_core.pd.metadata.store import MetadataStore
from sbp_core.wire.status import shown

_LOG: Final = logging.getLogger(__name__)
_REFRESH_SECONDS: Final = 30.0
"""How often streams are looked for although their revision is the same: rights do not change it."""


class GroupOperations:
    """Changes groups as their members ask, or are silent. `now` is in seconds, and runs evenly.

    A group has at most `members_max` members, which read at most `streams_max` streams together.
    """

    def __init__(
        self, *, members_max: int = GROUP_MEMBERS_MAX, streams_max: int = GROUP_STREAMS_MAX
    ) -> None:
        self._members_max = members_max
        self._streams_max = streams_max
        self._sessions = Sessions()
        self._streams = KnownStreams()
        self._revision = -1
        self._refreshed_at = 0.0
        self.expelled_count = 0
        self.moved_count = 0
        """Streams that went from one holder to another, since this placement driver leads."""

    def resume(self, store: MetadataStore, now: float) -> None:
        """Continue with the groups that the last leader had: all members were heard just now."""
        for name in store.groups.names():
            group = store.groups.maybe_group(name)
            for member in () if group is None else group.members.values():
                self._sessions.hear(name, member, None, now)

    def join(
        self, store: MetadataStore, name: str, member: Member, now: float, wall_ms: int
    ) -> Group:
        """Add a member, or change its subscription.

        Raises InvalidRequestError for one member, or pattern, too many, and PermissionDeniedError
        for a member of another identity.
        """
        before = store.groups.maybe_group(name) or Group(wall_ms)
        check_owner(before, member.member_id, member.subject)
        members = {**before.members, member.member_id: member}
        if member.member_id not in before.members:
            store.capacity.check("group_members", 1)
            if len(members) > self._members_max:
                raise invalid(
                    f"group {name} has {self._members_max} members, the most that a group can have:"
                    " let some leave, or use another group"
                )
        check_pattern_count(name, members.values())
        eligible = self._eligible(store, name, members.values())
        after = self._change(store, name, before, before.with_member(member, eligible))
        self._hear(name, after, member.member_id, now)
        if after.members.keys() != before.members.keys():
            _LOG.info(
                "group member joined group=%s member=%s generation=%d members=%d",
                *(name, shown(member.member_id), after.generation, len(after.members)),
            )
        return after

    def heartbeat(
        self,
        store: MetadataStore,
        name: str,
        member_id: str,
        *,
        generation: int,
        held: Collection[int],
        now: float,
        subject: str | None = None,
    ) -> Group:
        """Pass on what a member has given up.

        Raises MemberUnknownError, and PermissionDeniedError for a member of another identity.
        """
        before = part_of(store, name, member_id, generation, subject)
        after = before.after_heartbeat(member_id, generation, held)
        self._change(store, name, before, after)
        self._hear(name, after, member_id, now)
        return after

    def leave(
        self, store: MetadataStore, name: str, member_id: str, subject: str | None = None
    ) -> None:
        """Remove a member that reads nothing any more. An unknown member does no harm.

        Raises PermissionDeniedError for a member of another identity.
        """
        check_owner(store.groups.maybe_group(name, member_id), member_id, subject)
        if self._remove(store, name, [member_id]):
            _LOG.info("group member left group=%s member=%s", name, shown(member_id))

    def overdue(self, _: MetadataStore, now: float) -> list[str]:
        """Return the groups with members that are silent, or give nothing up: see `tend`."""
        return self._sessions.groups_overdue(now)

    def outdated(self, store: MetadataStore, now: float) -> list[str]:
        """Return the groups whose streams may be others since the last call: see `tend`."""
        groups = self._sessions.groups()
        revision = store.revision()
        is_same = revision == self._revision and now - self._refreshed_at < _REFRESH_SECONDS
        if not groups or is_same:
            return []
        self._revision, self._refreshed_at = revision, now
        return groups

    def tend(self, store: MetadataStore, name: str, now: float) -> None:
        """Expel overdue members of a group; assign the streams that there are now."""
        overdue = self._sessions.overdue(name, now)
        if overdue:
            self.expelled_count += self._remove(store, name, overdue.keys())
            for member_id, fault in overdue.items():
                _LOG.warning(
                    "group member expelled group=%s member=%s: %s", name, shown(member_id), fault
                )
            return
        group = store.groups.maybe_group(name)
        if group is not None:
            eligible = self._eligible(store, name, group.members.values())
            self._change(store, name, group, group.rebalanced(eligible))

    def _eligible(self, store: MetadataStore, name: str, members: Iterable[Member]) -> Eligible:
        streams = self._streams.names(store)
        return eligible_streams(store, name, members, streams, streams_max=self._streams_max)

    def _remove(self, store: MetadataStore, name: str, member_ids: Collection[str]) -> int:
        """Remove members; return how many there were."""
        before = store.groups.maybe_group(name) or Group(0)
        others = [each for key, each in before.members.items() if key not in member_ids]
        count = len(before.members) - len(others)
        if count:
            eligible = self._eligible(store, name, others)
            self._change(store, name, before, before.without_members(member_ids, eligible))
        for member_id in member_ids:
            self._sessions.forget(name, member_id)
        return count

    def _hear(self, name: str, group: Group, member_id: str, now: float) -> None:
        self._sessions.hear(name, group.members[member_id], group.asked(member_id), now)

    def _change(self, store: MetadataStore, name: str, before: Group, after: Group) -> Group:
        if after is before:
            return after
        store.groups.change(name, before, after)
        moved = sum(
            each.stream_id in before.holdings
            and before.holdings[each.stream_id].member_id != each.member_id
            for each in after.holdings.values()
        )
        self.moved_count += moved
        _LOG.info(
            "group changed group=%s generation=%d: %d streams moved, %d are to be given up",
            *(name, after.generation, moved),
            sum(each.revoked is not None for each in after.holdings.values()),
        )
        return after


def check_pattern_count(name: str, members: Iterable[Member]) -> None:
    """Raise InvalidRequestError for more patterns than a group can have."""
    count = sum(len(each.patterns) for each in members)
    if count > GROUP_ALL_PATTERNS_MAX:
        raise invalid(
            f"the members of group {name} would subscribe to {count} names and patterns together,"
            f" and at most {GROUP_ALL_PATTERNS_MAX} are accepted: subscribe to prefixes such as"
            " orders-*, or use several groups"
        )


def check_owner(group: Group | None, member_id: str, subject: str | None) -> None:
    """Raise PermissionDeniedError for a member of another identity; None may act for all."""
    member = None if group is None else group.members.get(member_id)
    if subject is not None and member is not None and member.subject != subject:
        raise PermissionDeniedError.of(
            f"member {shown(member_id)} belongs to another identity than {shown(subject)}, and only"
            " the identity that joined acts for a member: join with a member_id of your own"
        )


def part_of(
    store: MetadataStore, name: str, member_id: str, generation: int, subject: str | None
) -> Group:
    """Return what of a group concerns a member that knows a generation.

    Raises MemberUnknownError, and PermissionDeniedError for a member of another identity.
    """
    group = store.groups.maybe_group(name, member_id) or Group(generation)
    check_owner(group, member_id, subject)
    group.member(member_id, generation)
    return group


def refused_cursors(
    store: MetadataStore,
    name: str,
    member_id: str | None,
    generation: int,
    stream_ids: Iterable[int],
    *,
    subject: str | None = None,
) -> dict[int, StreamNotHeldError]:
    """Return why a member, or None, may not commit cursors of a group, by stream.

    Raises MemberUnknownError, PermissionDeniedError for a member of another identity, and
    StreamNotHeldError for all if the group has members.
    """
    if member_id is None:
        if store.groups.has_members(name):
            raise StreamNotHeldError.of(
                f"group {name} has members, which commit its cursors: to set them otherwise, stop"
                " the members, and wait until they have left or are expelled"
            )
        return {}
    group = part_of(store, name, member_id, generation, subject)
    refused = {}
    for stream_id in stream_ids:
        try:
            group.check_holds(member_id, generation, stream_id)
        except StreamNotHeldError as error:
            refused[stream_id] = error
    return refused
