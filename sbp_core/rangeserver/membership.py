"""The membership of a range server in a cluster: its id, heartbeats, and requests to the PD."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Final, TypeVar

from msgspec import structs

from sbp_core import limits
from sbp_core.client import AsyncClient, Connecting, RetryPolicy, Tls, parse_endpoints
from sbp_core.client.operations.range_placement import chunks
from sbp_core.errors import (
    AlreadyExistsError,
    InvalidRequestError,
    LogCorruptionError,
    LogError,
    NotFoundError,
    PermissionDeniedError,
    SbpError,
    StatusCode,
    UnsupportedError,
)
from sbp_core.log.boundaries import HighWaterKeeper
from sbp_core.log.disk import Disk
from sbp_core.log.states.range_states import RangeKey
from sbp_core.rangeserver.hosting import PlacedRange
from sbp_core.rangeserver.housekeeping.retention import Retention
from sbp_core.rangeserver.server_id import DriverCommit, Identity, load_identity, store_identity
from sbp_core.server.dispatch import Answer, Handler, ServerCall
from sbp_core.server.runtime import cancel_all
from sbp_core.server.trust import SECRETS_FEATURE, Standing, denied, is_same, new_secret, proof_of
from sbp_core.wire.headers import (
    CheckRightsRequest,
    CheckRightsResponse,
    ClientRole,
    CommitTxnRequest,
    CommitTxnResponse,
    Feature,
    HeartbeatRequest,
    HeartbeatResponse,
    IdAllocationRequest,
    IdAllocationResponse,
    ListRangesRequest,
    ListRangesResponse,
    ListRangesResult,
    RangeCriteria,
    RangeId,
    RangeServer,
    ReportMetricsRequest,
    ReportMetricsResponse,
    SealCause,
    SealRangesRequest,
    SealRangesResponse,
    StreamRange,
    TrimmedStream,
    TrimStreamsRequest,
    TrimStreamsResponse,
    TxnPart,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import maybe_error

_LOG: Final = logging.getLogger(__name__)
_Item = TypeVar("_Item")
_Response = TypeVar("_Response")
_BEAT_MS_MIN: Final = 10
"""The shortest pause between heartbeats that a placement driver may ask for."""


class Membership:
    """Keeps this server known to the placement drivers, leader and followers.

    `refused` is done with an error when the placement driver says that this server is not part of
    its cluster. The server must stop then, and keep its data.
    """

    def __init__(
        self,
        placement_drivers: str,
        data_dir: Path,
        disk: Disk,
        heartbeat_interval_ms: int,
        measure: Callable[[RangeServer], Awaitable[ReportMetricsRequest]],
        *,
        high_water: HighWaterKeeper,
        rack: str | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._rack = rack
        self._placement_drivers = placement_drivers
        self._high_water = high_water
        self._data_dir = data_dir
        self._disk = disk
        self._interval_ms = heartbeat_interval_ms
        self._beat_ms = heartbeat_interval_ms
        """Pause between heartbeats. The placement driver may ask for a shorter one."""
        self._measure = measure
        self._client = AsyncClient(
            placement_drivers,
            connecting=Connecting(tls=tls),
            retry=RetryPolicy(budget_ms=heartbeat_interval_ms),
        )
        self._identity: Identity | None = None
        self._has_trusted_driver = True
        """Whether the placement driver proves itself. Earlier versions do not."""
        self._advertise_addr = ""
        self.is_driver_reached = False
        """Whether the last heartbeat was answered."""
        self._is_leaving = False
        self._driver_commit = DriverCommit(data_dir, disk)
        self._load: ReportMetricsRequest | None = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self.refused: asyncio.Future[SbpError] = asyncio.get_running_loop().create_future()

    @property
    def server_id(self) -> int:
        """The id that the placement driver gave this server, -1 before `join`."""
        return self._identity.server_id if self._identity is not None else -1

    @property
    def cluster_id(self) -> str | None:
        """The cluster that this server belongs to, None before `join`."""
        return (self._identity.cluster_id or None) if self._identity is not None else None

    def greet_driver(self, request: HeartbeatRequest, standing: Standing) -> None:
        """Give the peer the standing of the placement driver, if it proves to be that.

        Raises PermissionDeniedError with the challenge otherwise.
        """
        if self._identity is None or not self._has_trusted_driver:
            return
        expected = proof_of(self._identity.server_secret, standing.challenge)
        if not is_same(request.server_secret, expected):
            raise denied(
                "this HEARTBEAT is said to be of the placement driver, and does not prove it: it"
                " must carry the proof that follows from this server's secret and the challenge",
                standing.challenge,
            )
        standing.is_placement_driver = True

    def check_driver(self, standing: Standing, what: str) -> None:
        """Raise PermissionDeniedError unless the peer is the placement driver."""
        if self._has_trusted_driver and not standing.is_placement_driver:
            raise denied(
                f"only the placement driver may ask a range server for {what}, and this connection"
                " did not prove to be its: ask the placement driver"
            )

    def only_for_driver(self, handler: Handler) -> Handler:
        """Return a handler that serves the placement driver only."""

        async def serve(call: ServerCall) -> Answer:
            self.check_driver(call.peer.standing, call.opcode.name)
            return await handler(call)

        return serve

    def self_table(self) -> RangeServer:
        """Return this server as it appears in frames."""
        return RangeServer(self.server_id, self._advertise_addr, self._rack)

    async def check_log(self) -> None:
        """Compare the log with the end that was reported to the placement driver.

        If the placement driver does not answer, the log is served, and `join` compares later.
        Raises LogCorruptionError if the log is shorter than it was, InvalidRequestError for another
        log.
        """
        self._identity = load_identity(self._data_dir)
        if self._identity is None:
            return
        request = structs.replace(self._heartbeat(), client_role=ClientRole.CLIENT)
        try:
            answer = await self._call_heartbeat(request)
        except InvalidRequestError:
            raise
        except SbpError as error:
            _LOG.warning("the log is served before the placement driver was asked: %s", error)
        else:
            await self._compare(answer)

    async def _compare(self, answer: HeartbeatResponse) -> None:
        promised, end = answer.promised_position, self._high_water.position
        if promised > end:
            await asyncio.to_thread(self._high_water.promise, promised)
            raise LogCorruptionError(
                f"the log in {self._data_dir / 'log'} ends at position {end}, and range server"
                f" {self.server_id} reported to the placement driver that it is synced up to"
                f" {promised}: the last {promised - end} bytes are missing, of which ranges is not"
                " known. Nothing was changed. Put the folder back as it was, or accept the loss:"
                f" `sbp log repair {quote(str(self._data_dir / 'log'))}`"
            )
        if promised < 0:
            await asyncio.to_thread(self._high_water.ensure_id)

    async def join(self, advertise_addr: str) -> None:
        """Load or allocate the id, announce the address, and start the heartbeats.

        Waits for the placement driver without a timeout, and until it knows that an earlier process
        of this server is gone. Raises InvalidRequestError or PermissionDeniedError if the server is
        refused, UnsupportedError for another protocol, LogCorruptionError if the log is shorter
        than it was.
        """
        self._advertise_addr = advertise_addr
        self._identity = load_identity(self._data_dir)
        if self._identity is not None and not self._identity.server_secret:
            self._keep(replace(self._identity, server_secret=new_secret()))
        is_named = bool(self._high_water.log_id)
        while True:
            try:
                if self._identity is None:
                    self._keep(await self._allocate_identity())
                await self._compare(await self._beat())
                if not is_named:  # `_compare` gave the log an id: report it
                    await self._beat()
                break
            except (InvalidRequestError, PermissionDeniedError, UnsupportedError, LogError):
                raise
            except SbpError as error:
                _LOG.warning("waiting for the placement driver: %s", error)
                await asyncio.sleep(self._interval_ms / 1000)
        self._tasks = (
            asyncio.create_task(self._keep_beating()),
            asyncio.create_task(self._keep_reporting()),
            asyncio.create_task(self._keep_followers_informed()),
        )

    async def announce_leaving(self) -> None:
        """Tell the placement driver that this server is about to stop. Raises SbpError."""
        self._is_leaving = True
        await self._beat()

    async def leave(self) -> None:
        """Stop the heartbeats and close the connections.

        The last heartbeat says that the server leaves, and where the log ends, so that the
        placement driver notices if the end is lost while the server is down.
        """
        self._is_leaving = True
        await cancel_all(self._tasks)
        if self._identity is not None:
            await self._send_load(self._client.endpoint, timeout_ms=limits.LAST_HEARTBEAT_MS)
        await self._client.close()

    async def list_hosted_ranges(self, stream_ids: Sequence[int]) -> dict[RangeKey, PlacedRange]:
        """Return the ranges of these streams that are placed on this server (LIST_RANGES).

        Before this server has an id the answer is empty: a request without an id would list the
        ranges of all servers.
        """
        if self._identity is None:
            return {}
        results = await self._list_ranges(stream_ids, self.self_table())
        return {
            (each.stream_id, each.range_index): PlacedRange(each, result.writers)
            for result in results
            for each in result.ranges
        }

    async def list_ranges(self, stream_id: int) -> list[StreamRange]:
        """Return all ranges of a stream, in order (LIST_RANGES)."""
        results = await self._list_ranges([stream_id], None)
        return [each for result in results for each in result.ranges]

    async def _list_ranges(
        self, stream_ids: Sequence[int], owner: RangeServer | None
    ) -> list[ListRangesResult]:
        owners = [RangeCriteria(owner, stream_id) for stream_id in stream_ids]
        answers = await self._ask_in_chunks(
            *(Opcode.LIST_RANGES, owners, ListRangesResponse),
            lambda chunk: ListRangesRequest(limits.REQUEST_TIMEOUT_MS, chunk),
        )
        found: list[ListRangesResult] = []
        for result in (each for answer in answers for each in answer.list_responses):
            error = maybe_error(result.status)
            if error is None:
                found.append(result)
            elif not isinstance(error, NotFoundError):
                raise error
        return found

    async def find_retentions(self, stream_ids: Sequence[int]) -> dict[int, Retention]:
        """Return the retention of these streams; unknown streams are left out."""
        return {
            each.stream_id: Retention(
                each.retention_period_ms, each.retention_bytes, each.created_at_ms
            )
            for each in await self._client.find_streams(stream_ids)
        }

    async def find_names(self, stream_ids: Sequence[int]) -> dict[int, str | None]:
        """Return the names of these streams; unknown streams are left out."""
        return {each.stream_id: each.name for each in await self._client.find_streams(stream_ids)}

    async def report_trims(self, offsets: Mapping[int, int]) -> None:
        """Report the starts of streams to the placement driver (TRIM_STREAMS)."""
        trimmed = [TrimmedStream(*each) for each in offsets.items()]
        answers = await self._ask_in_chunks(
            *(Opcode.TRIM_STREAMS, trimmed, TrimStreamsResponse),
            lambda chunk: TrimStreamsRequest(limits.REQUEST_TIMEOUT_MS, chunk),
        )
        for result in (each for answer in answers for each in answer.streams):
            error = maybe_error(result.status)
            if error is not None:
                _LOG.warning("the placement driver did not record a trim: %s", error)

    async def find_dead(self, parts: Sequence[TxnPart]) -> list[TxnPart]:
        """Return the parts that will never be published (COMMIT_TXN)."""
        answers = await self._ask_in_chunks(
            *(Opcode.COMMIT_TXN, parts, CommitTxnResponse),
            lambda chunk: CommitTxnRequest(limits.REQUEST_TIMEOUT_MS, parts=chunk),
        )
        return [part for answer in answers for part in answer.parts]

    async def check_rights(
        self, subject: str, stream_ids: Sequence[int]
    ) -> list[CheckRightsResponse]:
        """Return the rights of a subject on streams (CHECK_RIGHTS)."""
        return await self._ask_in_chunks(
            *(Opcode.CHECK_RIGHTS, stream_ids, CheckRightsResponse),
            lambda chunk: CheckRightsRequest(limits.REQUEST_TIMEOUT_MS, subject, chunk),
        )

    async def claim_txns(self, subject: str, txn_ids: Sequence[str]) -> set[str]:
        """Claim transactions for a subject; return those of others (SPEC "CHECK_RIGHTS")."""
        request = CheckRightsRequest(limits.REQUEST_TIMEOUT_MS, subject, txn_ids=tuple(txn_ids))
        answers = await self._client.ask(Opcode.CHECK_RIGHTS, request, CheckRightsResponse)
        return {each for answer in answers for each in answer.foreign_txn_ids}

    async def ask_to_seal(self, ranges: Sequence[tuple[int, int]], cause: SealCause) -> set[int]:
        """Ask to seal ranges, so that streams go on in new ones (SEAL_RANGE at the PD).

        Returns the streams that do not.
        """
        answers = await self._ask_in_chunks(
            *(Opcode.SEAL_RANGE, [RangeId(*each) for each in ranges], SealRangesResponse),
            lambda chunk: SealRangesRequest(limits.SEAL_TIMEOUT_MS, chunk, cause),
            timeout_ms=limits.SEAL_TIMEOUT_MS + limits.REQUEST_TIMEOUT_MS,
        )
        reasons: dict[int, SbpError] = {}
        for result in (each for answer in answers for each in answer.seal_responses):
            error = maybe_error(result.status)
            if error is not None:
                reasons[result.stream_id] = error
        if reasons:
            stream_id, reason = min(reasons.items())
            _LOG.warning("ranges not ended count=%d stream=%d: %s", len(reasons), stream_id, reason)
        return set(reasons)

    async def _ask_in_chunks(
        self,
        opcode: Opcode,
        items: Sequence[_Item],
        response_type: type[_Response],
        make_request: Callable[[tuple[_Item, ...]], object],
        timeout_ms: int | None = None,
    ) -> list[_Response]:
        """Ask the placement driver about any number of items, a request for each chunk of them."""
        answers: list[_Response] = []
        for chunk in chunks(items):
            request = make_request(tuple(chunk))
            answers += await self._client.ask(opcode, request, response_type, timeout_ms=timeout_ms)
        return answers

    async def _allocate_identity(self) -> Identity:
        request = IdAllocationRequest(limits.REQUEST_TIMEOUT_MS, self._advertise_addr)
        answers = await self._client.ask(Opcode.ALLOCATE_ID, request, IdAllocationResponse)
        if answers[-1].status is None or answers[-1].id < 0:
            raise UnsupportedError(
                StatusCode.UNSUPPORTED_OPERATION,
                f"the placement driver at {self._client.endpoint} gives this server the id"
                f" {answers[-1].id} without the status of success: it is broken, or speaks another"
                " protocol. No id was stored",
            )
        # Asked second: the leader, which allocated the id, names the cluster.
        beat = await self._call_heartbeat(HeartbeatRequest(client_role=ClientRole.CLIENT))
        secret = answers[-1].server_secret or new_secret()
        return Identity(answers[-1].id, beat.cluster_id or "", secret)

    def _keep(self, identity: Identity) -> None:
        store_identity(self._data_dir, identity, self._disk)
        self._identity = identity

    async def _beat(self) -> HeartbeatResponse:
        answer = await self._call_heartbeat(self._heartbeat())
        self.is_driver_reached = True
        # Read from every answer: another node may lead since the last heartbeat.
        features = {feature.name for feature in answer.features}
        self._has_trusted_driver = SECRETS_FEATURE in features
        self._driver_commit.note(answer.store_commit, answer.store_life)
        if answer.interval_ms > 0:
            self._beat_ms = max(min(self._interval_ms, answer.interval_ms), _BEAT_MS_MIN)
        return answer

    async def _call_heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        return (await self._client.ask(Opcode.HEARTBEAT, request, HeartbeatResponse))[-1]

    def _heartbeat(self) -> HeartbeatRequest:
        assert self._identity is not None
        return HeartbeatRequest(
            client_id=f"range-server-{self.server_id}",
            client_role=ClientRole.RANGE_SERVER,
            range_server=self.self_table(),
            features=(Feature(SECRETS_FEATURE),),
            cluster_id=self._identity.cluster_id,
            server_secret=self._identity.server_secret,
            store_commit=self._driver_commit.number,
            store_life=self._driver_commit.life,
            log_id=self._high_water.log_id or None,
            durable_position=self._high_water.position,
            is_leaving=self._is_leaving,
            interval_ms=self._beat_ms,
        )

    async def _report_load(self) -> None:
        """Report the load (SPEC "REPORT_METRICS"). A failure only costs a figure."""
        if self._is_leaving:
            return
        try:
            self._load = await self._measure(self.self_table())
            await self._client.ask(
                Opcode.REPORT_METRICS,
                self._load,
                ReportMetricsResponse,
                timeout_ms=limits.CONNECT_TIMEOUT_MS,
            )
        except (SbpError, OSError) as error:
            _LOG.debug("the load was not reported: %s", error)

    async def _keep_beating(self) -> None:
        is_known = True
        while True:
            await asyncio.sleep(self._beat_ms / 1000)
            try:
                await self._beat()
                if not is_known:
                    _LOG.info("the placement driver answers again")
                is_known = True
            except (InvalidRequestError, PermissionDeniedError, AlreadyExistsError) as error:
                self.refused.set_result(error)
                return
            except SbpError as error:
                if is_known:
                    _LOG.warning("the placement driver does not answer: %s", error)
                is_known = self.is_driver_reached = False

    async def _keep_reporting(self) -> None:
        """Report the load in a task of its own: a slow disk must not delay heartbeats."""
        while True:
            await self._report_load()
            await asyncio.sleep(self._interval_ms / 1000)

    async def _keep_followers_informed(self) -> None:
        """Send heartbeats and load to the followers, of which one leads next.

        Followers come from DESCRIBE_PD_CLUSTER and from the settings, also while no node leads.
        """
        given = parse_endpoints(self._placement_drivers)
        while True:
            leaders: set[str] = set()
            followers = dict.fromkeys(given)
            try:
                for each in await self._client.placement_drivers(self.self_table()):
                    if each.is_leader:
                        leaders.add(each.endpoint)
                    else:
                        followers[each.endpoint] = None
                leaders.add(self._client.endpoint)  # it may have another address in the settings
            except SbpError as error:
                _LOG.debug("the other placement drivers are not known: %s", error)
            await asyncio.gather(
                *(self._send_load(each) for each in followers if each not in leaders)
            )
            await asyncio.sleep(self._interval_ms / 1000)

    async def _send_load(self, driver: str, *, timeout_ms: int = limits.CONNECT_TIMEOUT_MS) -> None:
        """Send a heartbeat and the load to a node, best effort."""
        sent: list[tuple[Opcode, object]] = [(Opcode.HEARTBEAT, self._heartbeat())]
        if self._load is not None and not self._is_leaving:
            sent.append((Opcode.REPORT_METRICS, self._load))
        try:
            for opcode, header in sent:
                await self._client.call(driver, opcode, header, timeout_ms=timeout_ms)
        except SbpError as error:
            _LOG.debug("heartbeat to follower failed placement_driver=%s error=%s", driver, error)
