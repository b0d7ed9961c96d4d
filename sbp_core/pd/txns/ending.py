"""Ending transactions at range servers (SPEC "END_TXN"), and finding these servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from sbp_core import limits
from sbp_core.client import TxnPart
from sbp_core.errors import NoRangeServerError, RangeSealedError, SbpError, TxnEndedError
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import RangeKey, range_table
from sbp_core.pd.streams.fencing import UNREACHABLE
from sbp_core.pd.txns.decisions import Part
from sbp_core.pd.txns.publications import Publication, PublicationInput
from sbp_core.peers.driver_calls import Ended, Peers, TxnEnd, by_address, server_addresses
from sbp_core.server.runtime import cancel_all

_LOG: Final = logging.getLogger(__name__)

_UNDECIDED: Final = {None, PublicationInput.FAULT}
"""Inputs that another replica may not give."""

T = TypeVar("T")
R = TypeVar("R")


class Combiner(Generic[T, R]):
    """Hands items to `work`, up to `count_max` at a time, and never begins it twice at once.

    `work` returns a result for each item, in their order. An exception of it is raised for all.
    """

    def __init__(
        self, work: Callable[[Sequence[T]], Awaitable[Sequence[R]]], count_max: int
    ) -> None:
        self._work = work
        self._count_max = count_max
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._task: asyncio.Task[None] | None = None

    async def submit(self, item: T) -> R:
        """Return the result of an item."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await future

    async def stop(self) -> None:
        """Cancel the work in progress, and the calls that wait for it."""
        if self._task is not None:
            await cancel_all([self._task])

    async def _run(self) -> None:
        batch: list[tuple[T, asyncio.Future[R]]] = []
        try:
            while self._waiting:
                batch = self._waiting[: self._count_max]
                del self._waiting[: self._count_max]
                try:
                    results = await self._work([item for item, _ in batch])
                except Exception as error:  # noqa: BLE001 - raised in the callers that wait
                    for _, future in batch:
                        if not future.done():
                            future.set_exception(error)
                else:
                    for (_, future), result in zip(batch, results, strict=True):
                        if not future.done():
                            future.set_result(result)
        finally:
            self._task = None
            for _, future in (*batch, *self._waiting):
                future.cancel()
            self._waiting = []


@dataclass(frozen=True, slots=True)
class Route:
    """Where a range is; the address of its primary is empty if that is not known.

    `others` are the replicas of a sealed range: each has all entries of it. Only the primary of an
    open range answers for it.
    """

    address: str
    is_last: bool
    others: tuple[str, ...] = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses that are known, in the order in which they are tried.

        The primary of a range that has ended comes last: often it was lost, and it may be silent
        for END_TXN_TIMEOUT_MS.
        """
        return tuple(each for each in (*self.others, self.address) if each)


def find_routes(store: MetadataStore, keys: Sequence[RangeKey]) -> list[Route | None]:
    """Return where ranges are, in the order asked for; None where there is no such stream."""
    addresses = store.servers.addresses()
    routes: list[Route | None] = []
    for stream_id, range_index in keys:
        last = store.maybe_last_range(stream_id)
        if last is None:
            routes.append(None)
            continue
        piece = store.maybe_range(stream_id, range_index)
        address, *others = server_addresses(range_table(piece, addresses)) if piece else ("",)
        is_open = piece is None or piece.end_offset is None
        is_last = last.range_index <= range_index
        routes.append(Route(address, is_last, () if is_open else tuple(others)))
    return routes


class RangeServers:
    """The work of range servers for transactions.

    Requests to a server that is busy with one are collected, and sent in one frame after its
    answer. Raises SbpError for a server that does not answer. Nothing is retried here.
    """

    def __init__(self, store: StoreThread, peers: Peers) -> None:
        self._peers = peers
        self._routes: Combiner[RangeKey, Route | None] = Combiner(
            lambda keys: store.run(find_routes, keys), limits.STREAMS_PER_REQUEST_MAX
        )
        self._ends: dict[str, Combiner[TxnEnd, Ended | SbpError]] = {}
        self._drops: set[asyncio.Task[None]] = set()
        self._copying = asyncio.Semaphore(limits.TXN_COPIES_MAX)

    async def maybe_route(self, stream_id: int, range_index: int) -> Route | None:
        """Return where a range is; None if there is no such stream."""
        return await self._routes.submit((stream_id, range_index))

    async def publish(self, publication: Publication, route: Route) -> SbpError | None:
        """Publish in the range of `publication`; return why a server of it refuses that.

        An error that is raised says nothing about this publication: no server answered.
        """
        end = TxnEnd(
            publication.stream_id,
            publication.range_index,
            publication.txn_ids,
            is_commit=True,
            record_count=publication.record_count,
        )
        unanswered: list[SbpError] = []
        refusals: list[SbpError] = []
        for address in _known(route, end.stream_id):
            try:
                ended = await self._combiner(address).submit(end)
            except SbpError as error:
                unanswered.append(error)
                continue
            refusal = ended if isinstance(ended, SbpError) else None
            if refusal is None or publication.maybe_learned(refusal) not in _UNDECIDED:
                return refusal
            refusals.append(refusal)
        if unanswered:
            raise unanswered[0]
        return refusals[0]

    async def copy_earlier(self, publication: Publication, route: Route) -> None:
        """Stage what a publication has in earlier ranges in its own, at its server.

        The replicas of an earlier range are tried in turn. Raises RangeSealedError if its own one
        is sealed and was replicated: then its primary may have ended.
        TXN_COPIES_MAX publications do that at a time: each holds a frame's worth of batches.
        """
        to_address, *others = _known(route, publication.stream_id)
        if others:
            raise RangeSealedError.of(
                f"range {publication.range_index} of stream {publication.stream_id} is sealed"
            )
        async with self._copying:
            for part in publication.earlier:
                earlier = await self.maybe_route(part.stream_id, part.range_index)
                await self._copy(part, earlier, to_address, publication.range_index)

    async def _copy(
        self, part: Part, route: Route | None, to_address: str, to_range_index: int
    ) -> None:
        errors: list[SbpError] = []
        addresses = _known(route, part.stream_id)
        for address in addresses:
            try:
                await self._peers.copy_staged(
                    address,
                    TxnPart(part.txn_id, part.stream_id, part.range_index, part.record_count),
                    to_address,
                    to_range_index,
                    is_replica=len(addresses) > 1,
                )
            except (RangeSealedError, TxnEndedError):  # refused where it was to be staged
                raise
            except SbpError as error:
                errors.append(error)
            else:
                return
        raise next((each for each in errors if isinstance(each, UNREACHABLE)), errors[0])

    def drop(self, parts: Iterable[Part]) -> None:
        """Ask servers to drop staged batches, in the background, unless too many tasks do that.

        Best effort: servers find dead batches themselves, too.
        """
        ids: dict[RangeKey, list[str]] = {}
        for part in parts:
            ids.setdefault((part.stream_id, part.range_index), []).append(part.txn_id)
        if ids and len(self._drops) < limits.SYNC_TASKS_MAX:
            task = asyncio.create_task(self._drop(ids))
            self._drops.add(task)
            task.add_done_callback(self._drops.discard)

    async def stop(self) -> None:
        """Cancel the work in progress."""
        await cancel_all(self._drops)
        await self._routes.stop()
        for combiner in self._ends.values():
            await combiner.stop()

    def _combiner(self, address: str) -> Combiner[TxnEnd, Ended | SbpError]:
        if address not in self._ends:
            self._ends[address] = Combiner(
                lambda ends: self._peers.end_txns(address, ends), limits.STREAMS_PER_REQUEST_MAX
            )
        return self._ends[address]

    async def _drop(self, ids: dict[RangeKey, list[str]]) -> None:
        keys = list(ids)
        try:
            routes = await asyncio.gather(*(self.maybe_route(*key) for key in keys))
            ends = by_address(
                (route.address, TxnEnd(*key, tuple(dict.fromkeys(ids[key])), is_commit=False))
                for key, route in zip(keys, routes, strict=True)
                if route is not None and route.address
            )
            outcomes = await asyncio.gather(
                *(self._peers.end_txns(address, some) for address, some in ends.items()),
                return_exceptions=True,
            )
        except SbpError as error:
            _LOG.debug("staged batches not dropped ranges=%d: %s", len(keys), error)
            return
        for address, outcome in zip(ends, outcomes, strict=True):
            if isinstance(outcome, SbpError):
                _LOG.debug("staged batches not dropped address=%s: %s", address, outcome)


def _known(route: Route | None, stream_id: int) -> tuple[str, ...]:
    """Return the addresses of a range. Raises NoRangeServerError if none is known."""
    if route is not None and route.addresses:
        return route.addresses
    raise NoRangeServerError.of(
        f"the address of a range of stream {stream_id} that holds staged batches is unknown; start"
        " its range server"
    )
