"""A member of a consumer group, the requests that it waits with, and their answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Joining:
    """A JoinGroup request. `member_id` is empty in the first request of a member.

    `needs_id`: a dynamic member has to repeat its first request with the id that it is given.
    `may_skip`: the member understands that it leads a group whose assignment stands.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_s: float
    rebalance_s: float
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    needs_id: bool = True
    may_skip: bool = True

    @property
    def protocol_names(self) -> set[str]:
        """The names of the protocols, without their metadata."""
        return {name for name, _ in self.protocols}

    @property
    def size_bytes(self) -> int:
        """How much of the request is kept."""
        names = len(self.client_id) + len(self.instance_id or "") + len(self.protocol_type)
        return names + sum(len(name) + len(metadata) for name, metadata in self.protocols)


@dataclass(frozen=True, slots=True)
class Syncing:
    """A SyncGroup request. Only the leader of a generation brings `assignments`, by member id."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to a JoinGroup request. The leader gets the `members`, to assign partitions."""

    member_id: str
    error: ErrorCode = ErrorCode.none
    generation: int = -1
    protocol_type: str = ""
    protocol: str = ""
    leader_id: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """Id, instance id, and metadata of the protocol."""
    skips_assignment: bool = False


@dataclass(frozen=True, slots=True)
class Synced:
    """The answer to a SyncGroup request."""

    error: ErrorCode = ErrorCode.none
    protocol_type: str = ""
    protocol: str = ""
    assignment: bytes = b""


@dataclass(slots=True)
class Member:
    """A member of a group, as its last JoinGroup request describes it.

    `joining` and `syncing` answer the request that the member waits with, if it does. `owes_sync`:
    the member has not sent SyncGroup in this generation. Times are in seconds of the group's clock.
    """

    member_id: str
    instance_id: str | None
    asked: Joining
    expires_at: float
    assignment: bytes = b""
    owes_sync: bool = False
    joining: Callable[[Joined], None] | None = None
    syncing: Callable[[Synced], None] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the member waits for an answer, and so sends no heartbeat."""
        return self.joining is not None or self.syncing is not None

    def metadata(self, protocol: str) -> bytes:
        """Return what the member says about a protocol."""
        return dict(self.asked.protocols).get(protocol, b"")

    def heard(self, now: float) -> None:
        """Begin the session timeout again."""
        self.expires_at = now + self.asked.session_s

    def wait_for_join(self, reply: Callable[[Joined], None], now: float) -> None:
        """Keep a JoinGroup request open. An older one is of a connection that was lost."""
        self.refuse(ErrorCode.rebalance_in_progress, now)
        self.joining = reply

    def wait_for_sync(self, reply: Callable[[Synced], None], now: float) -> None:
        """Keep a SyncGroup request open. An older one is of a connection that was lost."""
        self.refuse(ErrorCode.rebalance_in_progress, now)
        self.syncing = reply

    def answer_join(self, answer: Joined, now: float) -> None:
        """Answer the JoinGroup request, if there is one."""
        reply, self.joining = self.joining, None
        if reply is not None:
            self.heard(now)
            reply(answer)

    def answer_sync(self, answer: Synced, now: float) -> None:
        """Answer the SyncGroup request, if there is one."""
        reply, self.syncing = self.syncing, None
        if reply is not None:
            self.heard(now)
            reply(answer)

    def refuse(self, error: ErrorCode, now: float) -> None:
        """Answer the request that the member waits with, if there is one, with an error."""
        self.answer_join(Joined(self.member_id, error), now)
        self.answer_sync(Synced(error), now)
