"""The rights of identities at a range server: a cache of the placement driver's decisions.

The placement driver gives each decision a lease. A decision in use is refreshed in the background
every REFRESH_MS: so a revoked right ends, and a placement driver that is down for less than the
lease stops nobody. A missing right is asked for again after DENIED_MS.

A writer belongs to the subject that used it first in a stream. The owner is kept in memory only:
after a restart, or in the next range on another server, the first subject counts again.

A transaction belongs to the subject that first staged as its producer. The placement driver, which
decides transactions, stores the owner before anything is staged, so nobody else can commit it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, Final

from msgspec import Struct

from sbp_core import limits
from sbp_core.access.identity import Identity
from sbp_core.access.rights import CLAIM_MS, Owners, Right
from sbp_core.errors import PermissionDeniedError, SbpError, ThrottledError
from sbp_core.server.dispatch import ServerCall
from sbp_core.server.guard import Authority, Judgement, Rule, Target, lacking_right, stream_id_of
from sbp_core.server.runtime import Clock, cancel_all
from sbp_core.server.trust import denied
from sbp_core.wire.headers import CheckRightsResponse, StreamRights
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error
from sbp_core.wire.txn_id import is_txn_id, owned_name

_LOG: Final = logging.getLogger(__name__)

REFRESH_MS: Final = 10_000
"""Age at which a decision in use is refreshed."""
DENIED_MS: Final = 1_000
"""Age up to which a missing right is not asked for again."""
DECISIONS_MAX: Final = 100_000
"""Size of the cache of decisions with rights."""
REFUSALS_MAX: Final = limits.STREAMS_PER_REQUEST_MAX
"""Size of the cache of decisions without rights, which must not evict the others."""

KNOWN_MAX: Final = 1_000
"""Ids of a subject in a stream that are known without a look for their owner."""

Ask = Callable[[str, Sequence[int]], Awaitable[Sequence[CheckRightsResponse]]]
"""Asks the placement driver for the rights of a subject on streams. Raises SbpError."""
Claim = Callable[[str, Sequence[str]], Awaitable[Collection[str]]]
"""Claims transactions for a subject at the placement driver; returns the foreign ones.

Raises SbpError.
"""
_Key = tuple[str, int]
_APPEND: Final = frozenset({Right.APPEND})
_AT_ONCE: Final = {Opcode.APPEND: "append_requests", Opcode.FETCH: "fetch_requests"}
"""The hot operations, which are judged without a wait if possible."""


class _Decision(Struct, gc=False):
    """The rights of a subject on a stream; `error` is set if there is no such stream.

    `name` is the name of the stream, if the placement driver told it. Times are in seconds. Until
    `fresh_end` the decision holds without another check. `writers` and `txns` are ids that are
    known to belong to the subject.
    """

    rights: frozenset[Right]
    asked_at: float
    end: float
    name: str | None
    error: SbpError | None
    fresh_end: float
    may_read: bool
    may_append: bool
    writers: set[str]
    txns: set[str]


class CachedRights(Authority):
    """Judges requests by cached decisions of the placement driver."""

    def __init__(
        self,
        ask: Ask,
        claim: Claim,
        clock: Clock,
        *,
        decisions_max: int = DECISIONS_MAX,
        refusals_max: int = REFUSALS_MAX,
    ) -> None:
        self._ask = ask
        self._claim = claim
        self._clock = clock
        self._decisions_max = decisions_max
        self._refusals_max = refusals_max
        self._decisions: OrderedDict[_Key, _Decision] = OrderedDict()
        self._refusals: OrderedDict[_Key, _Decision] = OrderedDict()
        self._asking: dict[_Key, asyncio.Task[None]] = {}
        self._writers: Owners[tuple[int, str]] = Owners()
        """The owners of writers, by stream and writer id."""
        self._claims: dict[tuple[str, str], float] = {}
        """Until when a subject may stage, by subject and producer (or transaction without one)."""

    async def stop(self) -> None:
        """Cancel all requests to the placement driver."""
        await cancel_all({*self._asking.values()})

    def maybe_judge(self, call: ServerCall, rule: Rule, request: Any) -> Judgement | None:
        """Judge the items of an APPEND or FETCH by the cache; None if a decision is missing."""
        field = _AT_ONCE.get(call.opcode)
        identity = call.peer.standing.identity
        if field is None or identity is None:
            return None
        now = self._clock.monotonic()
        subject = identity.subject
        items = getattr(request, field)
        is_append = call.opcode is Opcode.APPEND
        if not identity.is_admin and self._allows_all(subject, items, now, is_append=is_append):
            return ()
        if is_append and self._unclaimed(subject, (each.txn_id for each in items), now):
            return None
        if identity.is_admin:
            return ()
        judgement: list[SbpError | None] = []
        for item in items:
            stream_id = stream_id_of(item)
            decision = self._maybe_decision(subject, stream_id, rule.rights, now)
            if decision is None:
                return None
            judgement.append(self._judge(identity, rule.rights, stream_id, item, decision))
            if judgement[-1] is None and item.txn_id is not None and len(decision.txns) < KNOWN_MAX:
                decision.txns.add(item.txn_id)
        return judgement

    def _allows_all(
        self, subject: str, items: Iterable[Any], now: float, *, is_append: bool
    ) -> bool:
        """Whether fresh decisions allow all items: the common case, without calls per item."""
        decisions = self._decisions
        for item in items:
            decision = decisions.get((subject, item.stream_id))
            if decision is None or decision.fresh_end <= now:
                return False
            if not is_append:
                if not decision.may_read or item.txn_id is not None:
                    return False
            elif not decision.may_append:
                return False
            elif item.txn_id is not None:
                if item.txn_id not in decision.txns:
                    return False
            elif item.writer_id is not None and item.writer_id not in decision.writers:
                return False
        return True

    async def judge(
        self, identity: Identity, rights: frozenset[Right], targets: Sequence[Target]
    ) -> Judgement:
        """Judge targets for an identity that needs one of `rights`.

        The judgement of a target is ThrottledError if the placement driver does not answer.
        """
        judgement = await self._judge_all(identity, rights, targets)
        if rights != _APPEND:
            return judgement
        txn_ids = [
            getattr(each.item, "txn_id", None) if error is None else None
            for each, error in zip(targets, judgement, strict=True)
        ]
        unclaimed = self._unclaimed(identity.subject, txn_ids, self._clock.monotonic())
        refusals = await self._claim_all(identity.subject, unclaimed) if unclaimed else {}
        return [
            error or refusals.get(txn_id) for error, txn_id in zip(judgement, txn_ids, strict=True)
        ]

    async def _judge_all(
        self, identity: Identity, rights: frozenset[Right], targets: Sequence[Target]
    ) -> list[SbpError | None]:
        if identity.is_admin:
            return [None] * len(targets)
        subject, now = identity.subject, self._clock.monotonic()
        lacking = {
            each.stream_id
            for each in targets
            if self._maybe_decision(subject, each.stream_id, rights, now) is None
        }
        if lacking:
            await asyncio.wait(self._lookups_of(subject, lacking))
            now = self._clock.monotonic()
        judgement: list[SbpError | None] = []
        for each in targets:
            decision = self._maybe_kept((subject, each.stream_id))
            if decision is None or decision.end <= now:
                judgement.append(_not_known(subject, each))
            else:
                judgement.append(self._judge(identity, rights, each.stream_id, each.item, decision))
        return judgement

    def _unclaimed(self, subject: str, txn_ids: Iterable[str | None], now: float) -> list[str]:
        """Return the transactions that are not known to belong to the subject."""
        return [
            each
            for each in set(txn_ids)
            if each is not None
            and is_txn_id(each)
            and self._claims.get((subject, owned_name(each)), 0.0) <= now
        ]

    async def _claim_all(self, subject: str, txn_ids: Sequence[str]) -> dict[str | None, SbpError]:
        """Claim transactions for a subject; return the refusals by id."""
        end = self._clock.monotonic() + CLAIM_MS / 1_000
        try:
            foreign = await self._claim(subject, txn_ids)
        except SbpError as error:
            refusal: SbpError = ThrottledError.of(
                f"the placement driver has not recorded that {subject} stages in transaction"
                f" {txn_ids[0]} ({error}); try again"
            )
            return dict.fromkeys(txn_ids, refusal)
        for txn_id in txn_ids:
            if txn_id not in foreign:
                self._claims[subject, owned_name(txn_id)] = end
        while len(self._claims) > self._decisions_max:
            del self._claims[next(iter(self._claims))]
        return {each: _foreign("transaction", each) for each in foreign}

    def _maybe_decision(
        self, subject: str, stream_id: int, rights: frozenset[Right], now: float
    ) -> _Decision | None:
        """Return a usable decision, and refresh it if due; None if it must be asked for."""
        key = (subject, stream_id)
        decision = self._maybe_kept(key)
        if decision is None or decision.end <= now:
            return None
        age_ms = 1_000 * (now - decision.asked_at)
        if age_ms > DENIED_MS and rights.isdisjoint(decision.rights):
            return None
        (self._decisions if decision.rights else self._refusals).move_to_end(key)
        if age_ms > REFRESH_MS:
            self._lookups_of(subject, [stream_id])
        return decision

    def _maybe_kept(self, key: _Key) -> _Decision | None:
        return self._decisions.get(key) or self._refusals.get(key)

    def _judge(
        self,
        identity: Identity,
        rights: frozenset[Right],
        stream_id: int,
        item: Any,
        decision: _Decision,
    ) -> SbpError | None:
        if decision.error is not None:
            return decision.error
        if rights.isdisjoint(decision.rights):
            names = (decision.name,) if decision.name is not None and decision.rights else ()
            return lacking_right(identity, rights, Target(stream_id, names))
        txn_id, writer_id = getattr(item, "txn_id", None), getattr(item, "writer_id", None)
        if txn_id is not None and Right.APPEND not in rights:
            return denied(
                f"{identity} may not read staged batches: only servers of the cluster may"
            )
        if writer_id is not None:
            key = (stream_id, writer_id)
            if not self._writers.claim(key, identity.subject):
                target = Target(stream_id, (decision.name,))
                return _foreign("writer", f"{writer_id} of {target}")
            if len(decision.writers) < KNOWN_MAX:
                decision.writers.add(writer_id)
        return None

    def _lookups_of(self, subject: str, stream_ids: Collection[int]) -> set[asyncio.Task[None]]:
        """Return the requests for decisions. Begins one for those not asked for already."""
        fresh = [each for each in stream_ids if (subject, each) not in self._asking]
        if fresh:
            task = asyncio.create_task(self._look_up(subject, fresh))
            self._asking.update({(subject, each): task for each in fresh})
        return {self._asking[subject, each] for each in stream_ids}

    async def _look_up(self, subject: str, stream_ids: Sequence[int]) -> None:
        asked_at = self._clock.monotonic()
        try:
            for answer in await self._ask(subject, stream_ids):
                self._keep(subject, answer.streams, asked_at, asked_at + answer.lease_ms / 1_000)
        except SbpError as error:
            _LOG.warning("rights not known streams=%d error=%s", len(stream_ids), error)
        finally:
            for stream_id in stream_ids:
                self._asking.pop((subject, stream_id), None)

    def _keep(
        self, subject: str, streams: Iterable[StreamRights], asked_at: float, end: float
    ) -> None:
        for each in streams:
            key = (subject, each.stream_id)
            rights = frozenset(right for right in Right if right in each.rights)
            self._decisions.pop(key, None)
            self._refusals.pop(key, None)
            kept = self._decisions if rights else self._refusals
            kept[key] = _Decision(
                rights,
                asked_at,
                end,
                each.name,
                maybe_error(each.status),
                fresh_end=min(end, asked_at + REFRESH_MS / 1_000),
                may_read=Right.READ in rights,
                may_append=Right.APPEND in rights,
                writers=set(),
                txns=set(),
            )
        for kept, count_max in (
            (self._decisions, self._decisions_max),
            (self._refusals, self._refusals_max),
        ):
            while len(kept) > count_max:
                kept.popitem(last=False)


def _foreign(noun: str, used: str) -> PermissionDeniedError:
    return denied(f"{noun} {used} belongs to another identity: use another id")


def _not_known(subject: str, target: Target) -> ThrottledError:
    return ThrottledError.of(
        f"the placement driver has not said which rights {subject} has on {target}; try again"
    )
