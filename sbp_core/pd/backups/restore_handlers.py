"""RESTORE_METADATA: an empty cluster gets the metadata of a backup, and serves nobody until it has.

The streams keep their ids, and the times at which they were created. Their ranges are new: the
first one has an index above all that the stream had, by a distance that no stream crosses between
a backup and a loss. So clients that remember a placement, and transactions that were staged in a
lost range, find no range of that index.

The numbers of streams and of the revision go on at a distance, too. The commits belong to another
life of the store, by which readers that are ahead of the backup notice the restore.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from msgspec import ValidationError, convert

from sbp_core.access.rights import checked_grant
from sbp_core.errors import ThrottledError, invalid
from sbp_core.pd.metadata.history import last_id_of_epoch
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import CursorChange, RangeRecord, SchemaRecord, ServerLoad, StreamRecord
from sbp_core.pd.placement import Placement
from sbp_core.pd.server_membership import Membership
from sbp_core.pd.txns.decisions import Decided
from sbp_core.server.dispatch import Answer, Handler, Response, ServerCall
from sbp_core.server.runtime import Clock
from sbp_core.wire.headers import (
    ClusterMetadata,
    RestoreMetadataRequest,
    RestoreMetadataResponse,
    StreamExtent,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS, shown

T = TypeVar("T")

_BACKUP_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_INDEX_SHIFT: Final = 16
_GAP: Final = 1 << 24
"""The least distance of ids and revisions to the backup's; a random number below it is added."""
_OPEN: Final = frozenset(
    {
        *(Opcode.HEARTBEAT, Opcode.ALLOCATE_ID, Opcode.REPORT_METRICS),
        *(Opcode.DESCRIBE_PD_CLUSTER, Opcode.DESCRIBE_SERVERS, Opcode.RESTORE_METADATA),
    }
)
"""Operations that are served during a restore."""


class Restorer:
    """Serves RESTORE_METADATA, and refuses the operations of other clients until it is complete."""

    def __init__(self, store: StoreThread, membership: Membership, clock: Clock) -> None:
        self._store = store
        self._membership = membership
        self._clock = clock
        self.restoring: str | None = None
        """The id of the backup that the cluster is restored from now."""

    @property
    def notice(self) -> str:
        """The message to clients during a restore."""
        return (
            f"the cluster is being restored from backup {self.restoring} and serves nobody until"
            " that is complete; if it was interrupted, run `sbp restore` again"
        )

    async def start(self) -> None:
        """Continue with what the last placement driver knew."""
        restore = await self._store.run(lambda store: store.restores.maybe_restore())
        if restore is not None and not restore.is_complete:
            self.restoring = restore.backup_id

    def wrap(self, handlers: Mapping[Opcode, Handler]) -> dict[Opcode, Handler]:
        """Return handlers that serve range servers, and the client that restores.

        `handlers` check the rights of their callers: the grants may not be there yet, so others are
        told to wait before they could be denied.
        """
        return {
            opcode: each if opcode in _OPEN else self._wrap(each)
            for opcode, each in handlers.items()
        }

    def _wrap(self, handler: Handler) -> Handler:
        async def serve(call: ServerCall) -> Answer:
            self._check(call)
            return await handler(call)

        return serve

    def _check(self, call: ServerCall) -> None:
        restoring = self.restoring
        standing = call.peer.standing
        is_server = standing.server_ids or (standing.identity and standing.identity.is_server)
        if call.opcode is Opcode.CHECK_RIGHTS:
            is_server = False  # it asks for a client, whose grants may not be there yet
        if restoring is None or is_server or call.agreement.restoring == restoring:
            return
        raise ThrottledError.of(self.notice)

    async def restore(self, call: ServerCall) -> Answer:
        """SPEC "RESTORE_METADATA": durable when it is answered; may be repeated."""
        request = call.decode(RestoreMetadataRequest)
        backup_id = request.backup_id or ""
        if _BACKUP_ID.fullmatch(backup_id) is None:
            raise invalid(f"{shown(backup_id)} cannot be the id of a backup")
        now_ms = self._clock.wall_ms()
        is_complete = await self._store.run(_begin, backup_id, now_ms)
        if not is_complete:
            self.restoring = backup_id
            if request.metadata is not None:
                servers = self._membership.live_servers()
                await self._store.run(_add, request.metadata, servers)
            if request.is_complete:
                await self._store.run(_complete, request, now_ms)
                self.restoring, is_complete = None, True
        return Response(RestoreMetadataResponse(status=SUCCESS, is_complete=is_complete))


def _begin(store: MetadataStore, backup_id: str, now_ms: int) -> bool:
    """Begin a restore, or continue it; return whether it is complete.

    Raises InvalidRequestError where the cluster had a stream, or is of another backup.
    """
    restore = store.restores.maybe_restore()
    if restore is not None and restore.backup_id == backup_id:
        return restore.is_complete
    if restore is not None:
        what = "was restored" if restore.is_complete else "is being restored"
        raise invalid(
            f"this cluster {what} from backup {restore.backup_id}: restore {shown(backup_id)} onto"
            " a new cluster, with empty data directories"
        )
    if store.servers.last_stream_id() or store.transactions.last_number():
        raise invalid(
            "this cluster has, or had, streams, and a backup is restored onto an empty one only:"
            " start placement driver and range servers with empty data directories. Nothing was"
            " changed"
        )
    store.restores.begin(backup_id, now_ms)
    return False


def _add(store: MetadataStore, part: ClusterMetadata, servers: tuple[ServerLoad, ...]) -> None:
    """Add a part of the metadata; existing metadata stay."""
    placement = Placement(servers, store.primary_counts())
    present = store.streams_by_id([_id_of(each) for each in part.streams])
    store.restore_streams(
        [
            _placed(each, placement)
            for each, known in zip(part.streams, present, strict=True)
            if known is None
        ]
    )
    for new in _records(part.schemas, SchemaRecord):
        newest = store.schemas.maybe_newest(new.stream_id)
        if newest is None or newest.version < new.version:
            store.schemas.register([new])
    cursors: dict[tuple[str, int], list[CursorChange]] = {}
    for each in part.cursors:
        of_group = cursors.setdefault((each.group or "", each.committed_at_ms), [])
        of_group.append(CursorChange(each.stream_id, each.next_offset))
    for (group, committed_at_ms), of_group in cursors.items():
        store.cursors.commit(group, of_group, committed_at_ms)
    if part.grants:
        store.grants.change(
            [
                checked_grant(each.subject or "", each.right or "", each.pattern or "")
                for each in part.grants
            ],
            is_revoked=False,
        )
    store.transactions.restore(_records(part.txns, Decided))


def _records(tables: Sequence[object], record: type[T]) -> list[T]:
    """Convert tables of the protocol into values of the store: their fields have the same names."""
    try:
        return convert(tables, list[record], from_attributes=True)  # type: ignore[valid-type]
    except ValidationError as error:
        raise invalid(f"the backup has an incomplete {record.__name__}: {error}") from error


def _id_of(extent: StreamExtent) -> int:
    if extent.stream is None or extent.stream.stream_id < 0:
        raise invalid("a stream of the backup has no id")
    return extent.stream.stream_id


def _placed(
    extent: StreamExtent, placement: Placement
) -> tuple[StreamRecord, RangeRecord, Mapping[str, str]]:
    """Return a stream with its first range, on servers that are alive, and its properties.

    Raises NoRangeServerError if they are too few.
    """
    asked = extent.stream
    assert asked is not None
    stream = StreamRecord(
        asked.stream_id,
        asked.name,
        asked.replica_nums,
        asked.ack_count,
        asked.retention_period_ms,
        asked.created_at_ms,
        max(0, asked.retention_bytes),
    )
    first = RangeRecord(
        stream.stream_id,
        ((extent.last_range_index >> _INDEX_SHIFT) + 1) << _INDEX_SHIFT,
        extent.start_offset,
        None,
        stream.ack_count,
        placement.next_servers(stream.replica_count, stream.ack_count),
        stream.created_at_ms,
    )
    return stream, first, {each.key or "": each.value or "" for each in asked.properties}


def _complete(store: MetadataStore, request: RestoreMetadataRequest, now_ms: int) -> None:
    store.restores.complete(
        now_ms,
        last_stream_id=min(
            _far_above(request.last_stream_id), last_id_of_epoch(request.last_stream_id)
        ),
        revision=max(_far_above(request.revision), store.revision() + 1),
    )


def _far_above(number: int) -> int:
    return max(0, number) + _GAP + secrets.randbelow(_GAP)
