"""A consumer that shares the streams of its group with the other members.

Generated from ../aio/member.py: do not edit. Change that one, and run `make client`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

from sbp_core import group_limits
from sbp_core.client import Client, Membership
from sbp_core.errors import MemberUnknownError

_LOG: Final = logging.getLogger("sbp_core.app")
_HEARTBEATS_PER_SESSION: Final = 3


class Member:
    """The assignment of a member: the placement driver decides which streams are its own.

    `own` sends the heartbeats. A stream is given up by the heartbeat after the one whose answer no
    longer has it, when the consumer has committed its position. A member that was silent for too
    long is expelled: others may read its streams by then, so it drops them all, with what it did
    not commit, and joins again.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        patterns: Sequence[str],
        session_timeout_ms: int = group_limits.GROUP_SESSION_MS,
    ) -> None:
        self._client = client
        self._group = group
        self._patterns = tuple(patterns)
        self._session_timeout_ms = session_timeout_ms
        self._membership: Membership | None = None
        self._own: frozenset[int] = frozenset()
        """The streams that the consumer reads."""
        self._reported: frozenset[int] = frozenset()
        """Those that the last heartbeat named."""
        self._heartbeat_at = 0.0

    @property
    def own_interval_ms(self) -> int | None:
        """The time between heartbeats."""
        return self._session_timeout_ms // _HEARTBEATS_PER_SESSION

    @property
    def has_cursors(self) -> bool:
        """True: members have a group."""
        return True

    def own(self, selected: frozenset[int]) -> frozenset[int]:
        """Return the streams of the member as of the last heartbeat, which is sent when due."""
        membership = self._membership
        now = time.monotonic()
        if membership is None:
            if self._own:  # expelled: the consumer drops these first
                self._own = frozenset()
                return self._own
            membership = self._client.join_group(
                self._group, self._patterns, session_timeout_ms=self._session_timeout_ms
            )
            self._reported = frozenset()
        elif now >= self._heartbeat_at or self._own != self._reported:
            self._reported = self._own
            try:
                membership = self._client.group_heartbeat(membership, self._own)
            except MemberUnknownError as error:
                self._on_expelled(error)
                self._own = frozenset()
                return self._own
        else:
            return self._own
        self._membership = membership
        self._heartbeat_at = now + self._session_timeout_ms / 1000 / _HEARTBEATS_PER_SESSION
        self._own = frozenset(membership.stream_ids) & selected
        return self._own

    def cursors(self, stream_ids: Sequence[int]) -> Mapping[int, int]:
        """Return the group's cursors."""
        found = self._client.describe_cursors(self._group, stream_ids)
        return {each.stream_id: each.next_offset for each in found}

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Set the group's cursors. Raises MemberUnknownError if the member was expelled."""
        if self._membership is None:
            raise MemberUnknownError.of(
                f"nothing was committed: this member of group {self._group} was expelled, as it was"
                " silent for its session timeout; its records are read again, perhaps by others"
            )
        try:
            self._client.commit_cursors(self._group, offsets, membership=self._membership)
        except MemberUnknownError as error:
            self._on_expelled(error)
            raise

    def close(self) -> None:
        """Leave the group."""
        if self._membership is not None:
            member_id, self._membership = self._membership.member_id, None
            self._client.leave_group(self._group, member_id)

    def _on_expelled(self, error: MemberUnknownError) -> None:
        self._membership = None
        _LOG.warning(
            "member expelled group=%s streams=%d: %s; it joins again, and records that it did not"
            " commit are read again, perhaps by others",
            *(self._group, len(self._own), error),
        )
