"""The members of consumer groups, as a client sees them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Membership:
    """A member of a group, and the streams that it is to read, by id, as of a generation.

    The rules for members are in the protocol, "Consumer groups". In short: read `stream_ids` only,
    each from its cursor; send heartbeats, every third of `session_timeout_ms`; stop if that time
    has passed since the last answered one was sent, and on MemberUnknownError.
    """

    group: str
    member_id: str
    generation: int
    stream_ids: tuple[int, ...]
    session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member of a group. It is to read `stream_ids`, and to give up `revoked_ids`.

    `patterns` are names of streams, and begins of names followed by `*`. Without a `subject` it may
    read all streams. The times are in ms.
    """

    member_id: str
    patterns: tuple[str, ...]
    stream_ids: tuple[int, ...]
    revoked_ids: tuple[int, ...]
    session_timeout_ms: int
    handover_timeout_ms: int
    subject: str | None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members by id; without any, the generation is -1."""

    group: str
    generation: int
    members: tuple[MemberInfo, ...]

    @property
    def state(self) -> str:
        """Whether it is `empty`, `stable`, or `rebalancing`: a member is to give a stream up."""
        if not self.members:
            return "empty"
        is_moving = any(each.revoked_ids for each in self.members)
        return "rebalancing" if is_moving else "stable"

    @property
    def holders(self) -> dict[int, str]:
        """The member that holds each stream, by the id of the stream."""
        return {
            stream_id: each.member_id
            for each in self.members
            for stream_id in (*each.stream_ids, *each.revoked_ids)
        }
