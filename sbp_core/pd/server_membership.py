"""The range servers of a cluster: which are alive, which may join, and their logs.

SPEC "HEARTBEAT", "REPORT_METRICS". A range server proves its id by its secret. An address passes to
another server only when the process that was heard from there lately is known to have ended: a
copied data directory has the right secret too, and any process can get an id and announce the
address of another server.

Range servers are also held to what they reported about their logs. A log that ends before its
reported position, or that has another id, lost records. A server cannot always notice that itself:
a folder restored from an older copy is intact. So the placement driver keeps the id and the synced
position of each log: when it is new, every HIGH_WATER_KEPT_INTERVAL_MS while it grows, and when the
placement driver stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from sbp_core import limits
from sbp_core.client import parse_endpoint
from sbp_core.errors import AlreadyExistsError, invalid
from sbp_core.pd.metadata.store import MetadataStore, StoreThread
from sbp_core.pd.model import RangeServerRecord, ServerLoad
from sbp_core.peers.links import holds
from sbp_core.server.request_checks import check_number
from sbp_core.server.runtime import Clock
from sbp_core.server.trust import Standing, denied, is_same
from sbp_core.tls import Tls
from sbp_core.wire.headers import RangeServer

_LOG: Final = logging.getLogger(__name__)
_KEEP_DATA: Final = "No data was changed"
_LAPSES_FREE: Final = 3
_LAPSES_KEPT_SECONDS: Final = 1_200.0
_LAPSE_SECONDS: Final = 60.0
_LAPSE_SECONDS_MAX: Final = 3_600.0


@dataclass(slots=True)
class _Lapses:
    """How often a server was silent, and when last, by the clock.

    Each lapse costs a stream with replicas two ranges: one without the server, one with it again.
    So from its third lapse on a server gets no new ranges for a time, which doubles each time.
    """

    count: int = 0
    last: float = 0.0

    @property
    def seconds(self) -> float:
        """How long the server gets no new ranges."""
        if self.count < _LAPSES_FREE:
            return 0.0
        return min(_LAPSE_SECONDS * 2.0 ** (self.count - _LAPSES_FREE), _LAPSE_SECONDS_MAX)

    def are_recent(self, now: float) -> bool:
        """Whether the server gets no new ranges for them."""
        return now < self.last + self.seconds

    def are_over(self, now: float) -> bool:
        """Whether they can be forgotten: there was none for long."""
        return now > self.last + max(2 * self.seconds, _LAPSES_KEPT_SECONDS)


class Membership:
    """The range servers that were heard within the last `timeout_ms`.

    An id and an address belong to one process at a time. `Joining` decides which process may
    replace another, and finds the candidates with `conflicting`.
    """

    def __init__(
        self, clock: Clock, timeout_ms: int, fail_over_after_ms: int = limits.FAIL_OVER_AFTER_MS
    ) -> None:
        self._clock = clock
        self.timeout_ms: Final = timeout_ms
        self.interval_ms: Final = max(1, min(fail_over_after_ms, timeout_ms) // 3)
        """The pause between heartbeats that is asked for, and how long a look at a server takes."""
        self._intervals_ms: dict[int, int] = {}
        """The pause between heartbeats of those servers that say it."""
        self._answered_at: dict[int, float] = {}
        """When a server that was not heard was asked last, and answered."""
        self._heard: dict[RangeServerRecord, float] = {}
        self._heard_at: dict[int, float] = {}
        """When each server was heard last, also if that is long ago."""
        self._lapses: dict[int, _Lapses] = {}
        """Maps server id to how often the server was silent lately."""
        self._left: set[RangeServerRecord] = set()
        """Servers that stopped in good order, until their next heartbeat."""
        self._loads: dict[int, ServerLoad] = {}
        self._racks: dict[int, str] = {}
        self._since = self._leads_since = clock.monotonic()
        self.draining: frozenset[int] = frozenset()
        """The servers that are being drained; the leader sets them."""

    @property
    def has_listened(self) -> bool:
        """Whether every server that runs had the time to be heard, here or as a follower."""
        return self._is_over(self._since)

    def listen(self) -> None:
        """Wait until every server had the time to be heard, unless some are heard already."""
        self._leads_since = self._clock.monotonic()
        if not self.live_server_ids():
            self._since = self._clock.monotonic()
            self._heard_at.clear()

    def refresh(
        self, server: RangeServerRecord, rack: str = "", interval_ms: int | None = None
    ) -> None:
        """Note a heartbeat; the server replaces servers with the same id or the same address.

        The next heartbeat follows after `interval_ms`; None leaves the interval as it was.
        """
        self._left.discard(server)
        if (lapses := self._lapses.get(server.server_id)) and lapses.are_over(
            self._clock.monotonic()
        ):
            del self._lapses[server.server_id]
        if interval_ms is not None:
            self._intervals_ms[server.server_id] = interval_ms
        if server not in self._heard:
            for other in self._heard_instead(server):
                _LOG.warning(
                    "range server replaced new_id=%s new_address=%s old_id=%s old_address=%s",
                    *(server.server_id, server.address, other.server_id, other.address),
                )
                del self._heard[other]
        self._heard[server] = self._heard_at[server.server_id] = self._clock.monotonic()
        self._racks[server.server_id] = rack

    def leave(self, server: RangeServerRecord) -> None:
        """Note that a server stops: it counts as silent from now on."""
        self._left.add(server)
        if self._heard.pop(server, None) is not None:
            _LOG.info(
                "range server leaves server_id=%d address=%s", server.server_id, server.address
            )

    def has_left(self, server: RangeServerRecord) -> bool:
        """Whether a server has stopped in good order: what comes late from it counts no more."""
        return server in self._left

    def suspect(self, server_ids: Collection[int]) -> None:
        """Count servers that do not answer as silent, until they are heard again."""
        for server in [each for each in self._heard if each.server_id in server_ids]:
            _LOG.warning(
                "range server does not answer server_id=%d address=%s: it gets no new ranges until"
                " its next heartbeat",
                *(server.server_id, server.address),
            )
            self._lapse(server)

    def _lapse(self, server: RangeServerRecord) -> None:
        del self._heard[server]
        lapses = self._lapses.setdefault(server.server_id, _Lapses())
        lapses.count += 1
        lapses.last = self._clock.monotonic()
        if lapses.seconds:
            _LOG.warning(
                "range server is unsteady server_id=%d address=%s lapses=%d: it gets new ranges"
                " again after %d s without another, before only if there are no other servers",
                *(server.server_id, server.address, lapses.count, lapses.seconds),
            )

    def report(self, load: ServerLoad) -> None:
        """Keep what a server reported last (SPEC "REPORT_METRICS")."""
        self._loads[load.server_id] = load

    def is_live(self, server: RangeServerRecord) -> bool:
        """Whether the server was heard lately, at this address."""
        return server in self._heard and not self._is_silent(server)

    def is_silent_for(self, server_id: int, silence_ms: int) -> bool:
        """Whether a server was not heard for so long, counted from the start at the earliest."""
        heard_at = self._heard_at.get(server_id, self._since)
        return round(1000 * (self._clock.monotonic() - heard_at)) >= silence_ms

    def note_answer(self, server_id: int) -> None:
        """Note that a server answered a question."""
        self._answered_at[server_id] = self._clock.monotonic()

    def has_heard_since(self, server_id: int, time: float) -> bool:
        """Whether a server sent a heartbeat since a time of the clock."""
        return self._heard_at.get(server_id, -inf) >= time

    def may_be_lost(self, server_id: int) -> bool:
        """Whether a server should be asked whether it still serves the ranges that it leads.

        It left, did not answer, or missed two heartbeats. A server that does not say how often it
        sends heartbeats has the whole `timeout_ms`. Each server has a full period after this
        placement driver begins to lead.
        """
        now, look_ms = self._clock.monotonic(), 2 * self.interval_ms
        answered_at = self._answered_at.get(server_id, -inf)
        if 1000 * (now - answered_at) < look_ms:
            return False
        if server_id not in self._heard_at:
            return self.has_listened
        if not any(each.server_id == server_id for each in self._heard):
            return True
        interval_ms = self._intervals_ms.get(server_id, -1)
        patience_ms = max(2 * interval_ms, look_ms) if interval_ms > 0 else self.timeout_ms
        heard_at = max(self._heard_at[server_id], self._leads_since)
        return round(1000 * (now - heard_at)) >= min(patience_ms, self.timeout_ms)

    def load_of(self, server_id: int) -> ServerLoad:
        """Return what a server reported last, if it was heard lately."""
        load = self._loads.get(server_id) or ServerLoad(server_id)
        lapses = self._lapses.get(server_id)
        return replace(
            load,
            rack=self._racks.get(server_id, ""),
            is_unsteady=lapses is not None and lapses.are_recent(self._clock.monotonic()),
        )

    def live_server_ids(self) -> tuple[int, ...]:
        """Return the ids of the live servers, ascending."""
        for silent in [server for server in self._heard if self._is_silent(server)]:
            _LOG.warning(
                "range server silent server_id=%d address=%s: it gets no new ranges",
                silent.server_id,
                silent.address,
            )
            self._lapse(silent)
        return tuple(sorted(server.server_id for server in self._heard))

    def live_servers(self) -> tuple[ServerLoad, ...]:
        """Return the live servers that are not being drained, by id, with their loads."""
        live = self.live_server_ids()
        self._loads = {each: load for each, load in self._loads.items() if each in live}
        self._racks = {each: rack for each, rack in self._racks.items() if each in live}
        return tuple(self.load_of(each) for each in live if each not in self.draining)

    def conflicting(self, server: RangeServerRecord) -> list[RangeServerRecord]:
        """Return the live servers that have the id or the address of `server`, but not both."""
        return [each for each in self._heard_instead(server) if not self._is_silent(each)]

    def _heard_instead(self, server: RangeServerRecord) -> list[RangeServerRecord]:
        return [
            other
            for other in self._heard
            if (other.server_id == server.server_id) is not (other.address == server.address)
        ]

    def _is_silent(self, server: RangeServerRecord) -> bool:
        return self._is_over(self._heard[server])

    def _is_over(self, since: float) -> bool:
        return round(1000 * (self._clock.monotonic() - since)) >= self.timeout_ms


async def log_missing_servers(store: StoreThread, membership: Membership) -> None:
    """Log which servers host open ranges and have sent no heartbeat since the start, once."""
    await asyncio.sleep(membership.timeout_ms / 1000)
    counts = await store.run(lambda store: store.open_range_counts())
    addresses = await store.run(lambda store: store.servers.addresses())
    live = membership.live_server_ids()
    for server_id in sorted(counts.keys() - {*live}):
        _LOG.warning(
            "range server missing server_id=%d address=%s open_ranges=%d: no heartbeat since the"
            " start; start it with its data directory",
            *(server_id, addresses.get(server_id, "unknown"), counts[server_id]),
        )


class Joining:
    """Admits range servers to the membership, if they prove their id and address."""

    def __init__(self, store: StoreThread, membership: Membership, tls: Tls | None = None) -> None:
        self._tls = tls
        self._store = store
        self._membership = membership

    async def heard(
        self,
        announced: RangeServer | None,
        secret: str | None,
        standing: Standing,
        *,
        is_leaving: bool = False,
        is_load: bool = False,
        interval_ms: int | None = None,
    ) -> None:
        """Admit a server that sent a heartbeat, or its load; note it in the `standing` of the peer.

        A server that `is_leaving` gets no new ranges. Raises InvalidRequestError for an id that was
        never allocated or a missing table, ConfigurationError for an invalid address,
        PermissionDeniedError for a wrong secret, AlreadyExistsError while another process is heard
        under this id, or at this address.
        """
        if announced is None:
            raise invalid("a range server's HEARTBEAT or REPORT_METRICS must carry range_server")
        parse_endpoint(announced.advertise_addr or "")
        rack = announced.rack or ""
        check_number("the length of rack", len(rack), 0, limits.RACK_LENGTH_MAX)
        server = RangeServerRecord(announced.server_id, announced.advertise_addr or "")
        stored = await self._store.run(lambda store: store.servers.maybe_secret(server.server_id))
        if stored is not None:
            _check_secret(server.server_id, secret, stored)
        for other in self._membership.conflicting(server):
            await self._check_gone(other, server, stored or secret)
        if not self._membership.is_live(server) or stored is None:
            stored = await self._store.run(_register, self._store.cluster_id, server, secret)
            if stored is not None:
                _check_secret(server.server_id, secret, stored)
        if is_leaving:
            self._membership.leave(server)
        elif not is_load or not self._membership.has_left(server):
            self._membership.refresh(server, rack, interval_ms)
        if stored is not None:
            standing.server_ids.add(server.server_id)

    async def reported(self, announced: RangeServer | None, standing: Standing) -> None:
        """Note that a server reported its load, on the connection of its heartbeats.

        Raises as `heard` does. A server without a secret proves nothing, in heartbeats either.
        """
        secret = None
        if announced is not None and announced.server_id in standing.server_ids:
            secret = await self._store.run(
                lambda store: store.servers.maybe_secret(announced.server_id)
            )
        await self.heard(announced, secret, standing, is_load=True)

    async def _check_gone(
        self, other: RangeServerRecord, server: RangeServerRecord, secret: str | None
    ) -> None:
        """Raise AlreadyExistsError unless the process that was `other` is known to have ended.

        If a server moved, its old address is asked whether it is still there. If an address has a
        new server, that address is asked whether the new one is there.
        """
        if secret is not None:
            has_moved = other.server_id == server.server_id
            answers = await self._maybe_holds(other.address, secret)
            if answers is not None and answers is not has_moved:
                return
        raise AlreadyExistsError.of(
            f"range server {other.server_id} sent a heartbeat from {other.address} lately, so"
            f" server {server.server_id} at {server.address} cannot replace it. Either its former"
            " process still runs, or another one with a copy of its data directory does: stop one"
            f" of them. If neither runs, retry {self._membership.timeout_ms} ms after its last"
            f" heartbeat. {_KEEP_DATA}"
        )

    async def _maybe_holds(self, address: str, secret: str) -> bool | None:
        """Whether the server that answers at an address has a secret; None if that is unknown."""
        if await _is_refused(address):
            return False
        return await holds(address, self._store.cluster_id, secret, self._tls)


async def _is_refused(address: str) -> bool:
    """Whether the machine of an address refuses connections: no process listens there.

    No answer at all proves nothing: the network may be broken, and the process alive.
    """
    try:
        async with asyncio.timeout(limits.PROOF_TIMEOUT_MS / 1000):
            _, writer = await asyncio.open_connection(*parse_endpoint(address))
    except ConnectionRefusedError:
        return True
    except (OSError, UnicodeError):
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return False


def _register(
    store: MetadataStore, cluster_id: str, server: RangeServerRecord, secret: str | None
) -> str | None:
    """Store the address of a server, and the first secret it came with; return the one it has."""
    if not store.servers.register(server):
        raise invalid(
            f"server id {server.server_id} was never allocated by this placement driver"
            f" (cluster {cluster_id}); connect to the one that did, or restore"
            f" its data directory. {_KEEP_DATA}"
        )
    if secret:
        return store.servers.claim_secret(server.server_id, secret)
    return store.servers.maybe_secret(server.server_id)


def _check_secret(server_id: int, given: str | None, stored: str) -> None:
    if not is_same(given, stored):
        what = "another secret than" if given else "no secret, and not"
        raise denied(
            f"the request has {what} the one that server {server_id} got with its id: restore"
            " identity.json in its data directory, or start with an empty directory. Loads are"
            f" reported on the connection of the heartbeats. {_KEEP_DATA}"
        )
