"""The rights of identities: LIST_GRANTS, CHANGE_GRANTS, CHECK_RIGHTS, and what the guard asks.

The functions run on the store's thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sbp_core.access.identity import Identity
from sbp_core.access.rights import (
    LEASE_MS,
    ON_STREAMS,
    Right,
    SubjectRights,
    checked_grant,
    checked_subject,
)
from sbp_core.errors import PermissionDeniedError, StatusError, invalid
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import no_stream
from sbp_core.server.answers import in_frames, with_results
from sbp_core.server.dispatch import Answer, Response, ServerCall
from sbp_core.server.guard import Authority, Judgement, Target, lacking_right
from sbp_core.server.runtime import Clock
from sbp_core.wire.headers import (
    ChangeGrantsRequest,
    ChangeGrantsResponse,
    CheckRightsRequest,
    CheckRightsResponse,
    Grant,
    ListGrantsRequest,
    ListGrantsResponse,
    StreamRights,
)
from sbp_core.wire.status import SUCCESS, shown, status_for
from sbp_core.wire.txn_id import is_txn_id


class GrantHandlers:
    """Serves LIST_GRANTS, CHANGE_GRANTS and CHECK_RIGHTS."""

    def __init__(self, store: StoreThread, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def list(self, call: ServerCall) -> Answer:
        """SPEC "LIST_GRANTS": the grants of a subject, or all, by subject, right and pattern."""
        subject = call.decode(ListGrantsRequest).subject
        if subject is not None:
            subject = checked_subject(subject)
        found = await self._store.run(lambda store: store.grants.of(subject))
        return with_results(
            ListGrantsResponse, [Grant(each.subject, each.right, each.pattern) for each in found]
        )

    async def change(self, call: ServerCall) -> Answer:
        """SPEC "CHANGE_GRANTS": all or nothing; durable when it is answered."""
        request = call.decode(ChangeGrantsRequest)
        try:
            changes = [
                checked_grant(each.subject or "", each.right or "", each.pattern or "")
                for each in request.grants
            ]
            await self._store.run(
                lambda store: store.grants.change(changes, is_revoked=request.is_revoked)
            )
        except StatusError as error:
            return Response(ChangeGrantsResponse(status=status_for(error)))
        else:
            return Response(ChangeGrantsResponse(status=SUCCESS))

    async def check(self, call: ServerCall) -> Answer:
        """SPEC "CHECK_RIGHTS": the rights of a subject on streams, in the order of the request.

        The subject becomes the owner of the transactions that belong to nobody.
        """
        request = call.decode(CheckRightsRequest)
        subject = request.subject or ""
        results = await self._store.run(_check, subject, request.stream_ids)
        foreign: tuple[str, ...] = ()
        if request.txn_ids:
            foreign = await self._store.run(_claim, request.txn_ids, subject, self._clock.wall_ms())
        return in_frames(
            results,
            lambda part: CheckRightsResponse(
                streams=part, status=SUCCESS, lease_ms=LEASE_MS, foreign_txn_ids=foreign
            ),
        )


class StoredRights(Authority):
    """The rights as the store has them. The handler refuses a stream that does not exist."""

    def __init__(self, store: StoreThread) -> None:
        self._store = store

    async def judge(
        self, identity: Identity, rights: frozenset[Right], targets: Sequence[Target]
    ) -> Judgement:
        """Return why an identity that has none of these rights may not use a stream, or a group."""
        return await self._store.run(_judge, identity, rights, targets)


def _check(store: MetadataStore, subject: str, stream_ids: Sequence[int]) -> list[StreamRights]:
    own = SubjectRights(store.grants.of(subject))
    results = []
    for stream_id, found in zip(stream_ids, store.streams_by_id(stream_ids), strict=True):
        if found is not None:
            rights = tuple(sorted(own.on(found.name) & ON_STREAMS))
            results.append(StreamRights(stream_id, rights, SUCCESS, found.name))
        else:
            is_told = not own.anywhere.isdisjoint(ON_STREAMS)
            status = status_for(no_stream(stream_id)) if is_told else SUCCESS
            results.append(StreamRights(stream_id, status=status))
    return results


def _claim(
    store: MetadataStore, txn_ids: Sequence[str], subject: str, now_ms: int
) -> tuple[str, ...]:
    for each in txn_ids:
        if not is_txn_id(each):
            raise invalid(f"{shown(each)} is not the id of a transaction")
    return tuple(store.transactions.claim(txn_ids, subject, now_ms))


def _judge(
    store: MetadataStore, identity: Identity, rights: frozenset[Right], targets: Sequence[Target]
) -> list[PermissionDeniedError | None]:
    own = SubjectRights(store.grants.of(identity.subject))
    named = [each.stream_id for each in targets if each.stream_id >= 0]
    names = {
        stream_id: found.name
        for stream_id, found in zip(named, store.streams_by_id(named), strict=True)
        if found is not None
    }
    lacking = (_maybe_lacking(own, rights, each, names) for each in targets)
    return [None if each is None else lacking_right(identity, rights, each) for each in lacking]


def _maybe_lacking(
    own: SubjectRights, rights: frozenset[Right], target: Target, names: Mapping[int, str | None]
) -> Target | None:
    """Return what a subject has none of these rights on, as it may see it; None if it has one.

    `names` maps the ids of existing streams to their names. A subject without any rights does not
    learn which streams exist.
    """
    stream_id = target.stream_id
    if stream_id in names:
        name = names[stream_id]
        found = own.on(name)
        if rights.isdisjoint(found):
            return Target(stream_id, () if found.isdisjoint(ON_STREAMS) else (name,))
    elif (stream_id >= 0 or not target.names) and rights.isdisjoint(own.anywhere):
        return Target(stream_id)
    for name in target.names:
        if rights.isdisjoint(own.on(name)):
            return Target(names=(name,))
    return None
