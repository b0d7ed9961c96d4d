"""Several placement drivers on one database: the leader serves, the others name the leader.

Each claims to lead once a second (`Leadership.hold`). The one whose claim holds makes the handlers
of a term, which continue with everything that is in the store, as at a start. When the lease is
lost, or cannot be renewed in time, their work ends at once; what still runs is refused by the
store, which knows the term.

The others note which range servers are alive, so that a new leader knows it. They write nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from sbp_core import limits
from sbp_core.errors import InvalidRequestError, NotLeaderError, StatusCode, StatusError
from sbp_core.pd.driver_metrics import Observation
from sbp_core.pd.metadata.leadership import Leadership, Node
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import RangeServerRecord
from sbp_core.pd.server_membership import Membership
from sbp_core.pd.streams.stream_handlers import PlacementDriverHandlers
from sbp_core.server.dispatch import Answer, Handler, Response, ServerCall
from sbp_core.server.runtime import Clock, cancel_all
from sbp_core.server.served import Unready
from sbp_core.server.trust import Standing, check_cluster, heartbeat_answer, is_same
from sbp_core.wire.headers import (
    ClientRole,
    DescribePlacementDriverClusterResponse,
    HeartbeatRequest,
    PlacementDriverCluster,
    PlacementDriverNode,
    RangeServer,
    encode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS, status_for

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Term:
    """A term in which this placement driver leads."""

    number: int
    store: StoreThread
    handlers: PlacementDriverHandlers
    operations: Mapping[Opcode, Handler]


class Election:
    """Serves the operations of a placement driver that leads while its lease lasts."""

    def __init__(
        self,
        url: str,
        store: StoreThread,
        membership: Membership,
        clock: Clock,
        *,
        name: str,
        make_handlers: Callable[[StoreThread], PlacementDriverHandlers],
    ) -> None:
        self._url, self._name = url, name
        self._store = store
        self._membership = membership
        self._clock = clock
        self._make_handlers = make_handlers
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sbp-pd-lease")
        self._leadership: Leadership | None = None
        self._address = ""
        self._nodes: tuple[Node, ...] = ()
        self._term: _Term | None = None
        self._lease_end = 0.0
        self._is_refused = asyncio.Event()
        """Set when the store refuses work: the next claim, which ends the term, need not wait."""
        self._campaign: asyncio.Task[None] | None = None
        self._fault = ""
        """Why the last claim failed."""

    def by_opcode(self) -> Mapping[Opcode, Handler]:
        """Return the handler of each operation; all but two are for the leader only."""
        operations = self._make_handlers(self._store).by_opcode()
        return {
            **dict.fromkeys(operations, self._serve),
            Opcode.HEARTBEAT: self._heartbeat,
            Opcode.DESCRIBE_PD_CLUSTER: self._describe_cluster,
        }

    async def start(self, address: str) -> None:
        """Announce this placement driver at an address, and lead if no other one does."""
        self._address = address
        self._nodes = (Node(self._name, address, is_leader=False),)
        self._leadership = Leadership(self._url, self._name, address)
        await self._claim()
        self._campaign = asyncio.create_task(self._keep_claiming())

    async def rest(self) -> None:
        """End the calls that wait for work in the background."""
        if self._term is not None:
            await self._term.handlers.rest()

    async def stop(self) -> None:
        """End the work and the lease, so that another placement driver leads within a second."""
        if self._campaign is not None:
            await cancel_all([self._campaign])
        await self._step_down("it stops")
        if self._leadership is not None:
            with suppress(StatusError):  # then the lease runs out
                await self._in_database(self._leadership.resign)
            self._leadership.close()
        self._executor.shutdown(wait=False)

    @property
    def term(self) -> int:
        """The term in which this placement driver leads, 0 while it does not."""
        return 0 if self._term is None else self._term.number

    @property
    def observation(self) -> Observation | None:
        """Its metrics while it leads; None while it does not."""
        return None if self._term is None else self._term.handlers.observation

    @property
    def leader(self) -> str | None:
        """The address of the placement driver that leads, as far as this one knows."""
        return next((each.address for each in self._current_nodes() if each.is_leader), None)

    def unready(self) -> Iterator[Unready]:
        """Yield why this placement driver does not lead and knows no leader."""
        if self._fault:
            yield Unready("store_unreachable", f"the database cannot be used: {self._fault}")
        elif self.leader is None:
            yield Unready("no_leader", "this placement driver does not lead, and none is known to")

    def refusal(self) -> NotLeaderError:
        """Return the answer to what only the leader may do: it names the leader."""
        leader = self.leader
        remedy = "no other one is known to lead, retry" if leader is None else f"ask {leader}"
        return NotLeaderError(
            StatusCode.PD_NOT_LEADER,
            f"the placement driver {self._name} at {self._address} does not lead; {remedy}",
            encode_header(self._cluster()),
        )

    async def _refuse_late(self) -> NotLeaderError:
        """Return the refusal of work that the store found to be after its term."""
        if self._term is not None:  # so it was not noticed yet which one leads now
            assert self._leadership is not None
            with suppress(StatusError):
                self._nodes = await self._in_database(self._leadership.nodes)
            self._is_refused.set()
        return self.refusal()

    async def _keep_claiming(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(limits.DRIVER_RENEWAL_MS / 1000):
                    await self._is_refused.wait()
            self._is_refused.clear()
            try:
                await self._claim()
            except Exception:  # noqa: BLE001 - one fault must not end all claims
                _LOG.exception("claim failed unexpectedly name=%s: retrying", self._name)

    async def _claim(self) -> None:
        """Claim to lead; begin or end a term if that changes something."""
        claimed_at = self._clock.monotonic()
        claim = asyncio.ensure_future(self._in_database(self._hold))
        if self._term is not None:
            await asyncio.wait({claim}, timeout=max(0.0, self._lease_end - claimed_at))
            if not claim.done():
                await self._step_down("its lease ran out before the database renewed it")
        former = next((each for each in self._nodes if each.is_leader), None)
        try:
            number, self._nodes = await claim
        except StatusError as error:
            if self._fault != str(error):
                _LOG.warning("claim failed name=%s: %s; retrying", self._name, error)
            self._fault = str(error)
            if self._clock.monotonic() >= self._lease_end:
                await self._step_down("its lease ran out")
            return
        self._fault = ""
        if self._term is not None and self._term.number != number:
            await self._step_down("another one leads")
        if number is not None:
            self._lease_end = claimed_at + limits.DRIVER_LEASE_MS / 1000
            if self._term is None:
                await self._lead(number, former)

    def _hold(self) -> tuple[int | None, tuple[Node, ...]]:
        assert self._leadership is not None
        return self._leadership.hold(), self._leadership.nodes()

    async def _in_database(self, work: Callable[[], T]) -> T:
        """Run work of `Leadership`, one after the other: a claim never comes after `resign`."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def _lead(self, number: int, former: Node | None) -> None:
        """Begin a term: continue with everything that is in the store.

        `former` led when this one looked last, a second ago.
        """
        self._membership.listen()
        try:
            store = await self._store.lead(number, self._refuse_late)
            handlers = self._make_handlers(store)
            try:
                await handlers.start()
            except BaseException:
                store.end()
                await handlers.stop()
                raise
        except StatusError as error:
            _LOG.warning("term not begun term=%d name=%s: %s; retrying", number, self._name, error)
            return
        self._term = _Term(number, store, handlers, handlers.by_opcode())
        if former is None:
            _LOG.info("leading term=%d name=%s address=%s", number, self._name, self._address)
        else:
            _LOG.warning(
                "took over term=%d name=%s address=%s: the lease of %s at %s has ended",
                *(number, self._name, self._address, former.name, former.address),
            )

    async def _step_down(self, reason: str) -> None:
        """End the term, if there is one: nothing is decided from here on."""
        term, self._term = self._term, None
        if term is None:
            return
        _LOG.warning("no longer leading term=%d name=%s: %s", term.number, self._name, reason)
        term.store.end()
        await term.handlers.rest()
        await term.handlers.stop()

    async def _serve(self, call: ServerCall) -> Answer:
        term = self._term
        if term is None:
            raise self.refusal()
        return await term.operations[call.opcode](call)

    async def _heartbeat(self, call: ServerCall) -> Answer:
        """SPEC "HEARTBEAT", of a placement driver that may not lead.

        A follower notes that a range server is alive, and sends it to the leader, which checks the
        id, address and log of the server.
        """
        if self._term is not None:
            return await self._serve(call)
        request = call.decode(HeartbeatRequest)
        status = SUCCESS
        try:
            check_cluster(request, self._store.cluster_id)
            if request.range_server is not None:
                if request.client_role == ClientRole.RANGE_SERVER:
                    await self._note_alive(request, request.range_server, call.peer.standing)
                raise self.refusal()
        except (InvalidRequestError, NotLeaderError) as error:
            status = status_for(error)
        return await call.greet(request, heartbeat_answer(request, status, self._store.cluster_id))

    async def _note_alive(
        self, request: HeartbeatRequest, announced: RangeServer, standing: Standing
    ) -> None:
        """Note a range server, if the leader has registered it at this address."""

        def look_up(store: MetadataStore) -> tuple[str | None, str | None]:
            servers = store.servers
            known = servers.addresses().get(announced.server_id)
            return known, servers.maybe_secret(announced.server_id)

        address, stored = await self._store.peek(look_up)
        if address is None or address != announced.advertise_addr:
            return
        if stored is not None:
            if not is_same(request.server_secret, stored):
                return
            standing.server_ids.add(announced.server_id)
        server = RangeServerRecord(announced.server_id, address)
        if request.is_leaving:
            self._membership.leave(server)
        else:
            rack = (announced.rack or "")[: limits.RACK_LENGTH_MAX]
            self._membership.refresh(server, rack, request.interval_ms)

    async def _describe_cluster(self, call: ServerCall) -> Answer:
        """SPEC "DESCRIBE_PD_CLUSTER": all that announced themselves lately, and which one leads."""
        return Response(
            DescribePlacementDriverClusterResponse(status=SUCCESS, cluster=self._cluster())
        )

    def _cluster(self) -> PlacementDriverCluster:
        return PlacementDriverCluster(
            tuple(
                PlacementDriverNode(
                    name=each.name, advertise_addr=each.address, is_leader=each.is_leader
                )
                for each in self._current_nodes()
            )
        )

    def _current_nodes(self) -> list[Node]:
        """Return the nodes as they were known last; this one leads only while it has a term."""
        return [
            replace(each, is_leader=False)
            if each.address == self._address and self._term is None
            else each
            for each in self._nodes
        ]
