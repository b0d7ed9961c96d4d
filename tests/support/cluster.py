"""Clusters of a test: servers in its own event loop, or `sbp` processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sbp_core.client import AppendItem, AsyncClient, Connecting, FetchItem
from sbp_core.client.operations.open_calls import Call
from sbp_core.cluster import Cluster
from sbp_core.errors import PermissionDeniedError, StatusCode
from sbp_core.pd import PlacementDriver
from sbp_core.peers.links import prove
from sbp_core.rangeserver.bounds import Bounds
from sbp_core.rangeserver.server import RangeServer
from sbp_core.record_sizes import RecordSizes
from sbp_core.records import ROWS_SCHEMA, decode_batch, encode_rows, split_envelopes
from sbp_core.server.trust import proof_of
from sbp_core.settings.declaration import setting_of
from sbp_core.settings.server_settings import (
    ClusterSettings,
    PlacementDriverSettings,
    RangeServerSettings,
)
from sbp_core.tls import ServerTls
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import ClientRole, HeartbeatRequest, RangeId, SealRangesRequest
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import check_status
from tests.support.clock import until
from tests.support.faults.cluster import FaultCluster
from tests.support.faults.proxy import FaultProxy
from tests.support.wire import RawClient

TIMESTAMP_MS = 1_700_000_000_000


def rows_batch(values: Sequence[bytes | None], stream_id: int = 0) -> bytes:
    """An encoded record batch with these values."""
    count = len(values)
    rows = pa.record_batch(
        [
            pa.nulls(count, pa.binary()),
            pa.array(values, pa.binary()),
            pa.nulls(count, ROWS_SCHEMA.field("headers").type),
            pa.array([TIMESTAMP_MS * 1000] * count, ROWS_SCHEMA.field("timestamp").type),
        ],
        schema=ROWS_SCHEMA,
    )
    return encode_rows(rows, stream_id=stream_id, timestamp_ms=TIMESTAMP_MS)


def values_of(payload: bytes | memoryview) -> list[tuple[int, bytes | None]]:
    """(offset, value) of each record of a FETCH payload."""
    return [
        (envelope.base_offset + index, value)
        for envelope in split_envelopes(payload)
        for index, value in enumerate(decode_batch(envelope).column("value").to_pylist())
    ]


@dataclass
class CoreCluster:
    pd: PlacementDriver
    server: RangeServer
    client: AsyncClient

    async def read(self, stream_id: int, start: int = 0, **options: int) -> list[tuple[int, bytes]]:
        """All records from `start` to the tail, following next_offset."""
        records: list[tuple[int, bytes]] = []
        offset = start
        while True:
            item = FetchItem(stream_id, offset, None, options.get("max_bytes", 1 << 20))
            outcomes = [outcome async for outcome in self.client.fetch([item])]
            (outcome,) = outcomes
            if outcome.error is not None:
                raise outcome.error
            found = values_of(outcome.payload)
            records += [(at, value) for at, value in found if at >= offset]
            if outcome.next_offset == offset:
                return records
            offset = outcome.next_offset


def allow_small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let range servers of this process have segments of any size."""
    (segment_bytes,) = (
        each for each in fields(RangeServerSettings) if each.name == "segment_bytes"
    )
    metadata = {"setting": replace(setting_of(segment_bytes), type=int)}
    monkeypatch.setattr(segment_bytes, "metadata", metadata)
    monkeypatch.setattr(RecordSizes, "segment_bytes_min", 1)


def tls_settings(tls: ServerTls) -> dict[str, Any]:
    """Return the settings of a server with these files."""
    return {
        "tls_cert_file": tls.cert_file,
        "tls_key_file": tls.key_file,
        "tls_ca_file": tls.ca_file,
    }


@asynccontextmanager
async def core_cluster(
    folder: Path, *, tls: ServerTls | None = None, **server_options: object
) -> AsyncIterator[CoreCluster]:
    """Start a cluster on `folder`, on free ports; stop it at the end."""
    files = {} if tls is None else tls_settings(tls)
    ports = {name: server_options.pop(name, None) for name in ("disk", "probe", "clock")}
    bounds = Bounds(**(server_options.pop("bounds", None) or {}))
    pd = PlacementDriver(PlacementDriverSettings(data_dir=folder / "pd", port=0, **files))
    endpoint = await pd.start()
    server = RangeServer(
        RangeServerSettings(
            data_dir=folder / "rs", placement_driver=endpoint, port=0, **files, **server_options
        ),
        **ports,
        bounds=bounds,
    )
    try:
        await server.start()
        connecting = Connecting(tls=None if tls is None else tls.as_client)
        async with AsyncClient(endpoint, connecting=connecting) as client:
            yield CoreCluster(pd, server, client)
    finally:
        await server.stop()
        await pd.stop()


NO_FALSE_ALARM = {"fail_over_after_ms": 15_000}
"""All servers share the loop of the test, which may stand still on a busy machine."""


@asynccontextmanager
async def cluster_of(folder, range_servers=3, **settings):
    cluster = Cluster(
        ClusterSettings(
            data_dir=folder,
            pd_port=0,
            range_server_port=0,
            range_servers=range_servers,
            **settings,
        )
    )
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


def run(folder, body, **kwargs):
    async def main():
        async with (
            cluster_of(folder, **kwargs) as cluster,
            AsyncClient(cluster.endpoints.pd) as client,
        ):
            await asyncio.wait_for(body(cluster, client), 60)

    asyncio.run(main())


async def append(client, stream_id, *values):
    (outcome,) = await client.append([AppendItem(stream_id, rows_batch(values))])
    return outcome.base_offset


async def read_all(client, stream_id, count_max=1_000):
    records = []
    while len(records) < count_max:
        item = FetchItem(stream_id, len(records), None, 1 << 20)
        (outcome,) = [outcome async for outcome in client.fetch([item])]
        assert outcome.error is None
        if not outcome.payload:
            return records
        records += values_of(outcome.payload)
    return records


async def seal(cluster, stream_id, range_index=-1):
    async with RawClient.at(cluster.endpoints.pd) as pd:
        request = SealRangesRequest(ranges=(RangeId(stream_id, range_index),))
        (answer,) = await pd.ask(Opcode.SEAL_RANGE, request)
    (result,) = answer.seal_responses
    return result


def hosted_at(cluster, stream_id, range_index):
    """The range at each server, by endpoint."""
    return {
        server.endpoint: server._host.table.maybe_range((stream_id, range_index))
        for server in cluster._range_servers
    }


async def copies_of(cluster, stream_id, range_index, count=3):
    """The range at each server that is to have it, by endpoint, once all have learnt of it."""

    def found():
        hosted = hosted_at(cluster, stream_id, range_index)
        return {endpoint: each for endpoint, each in hosted.items() if each is not None}

    await asyncio.to_thread(until, lambda: len(found()) == count)
    return found()


def primary_of(cluster, key):
    (primary,) = (
        each for each in cluster._range_servers if each._host.table.maybe_range(key).is_led
    )
    return primary


@dataclass(frozen=True, slots=True)
class ProxiedCluster:
    """Clients connect to `endpoint`; all that they and the placement driver say to the range
    server goes through a proxy too, because that is what it advertises."""

    cluster: FaultCluster
    to_placement_driver: FaultProxy
    to_range_server: FaultProxy

    @property
    def endpoint(self) -> str:
        return self.to_placement_driver.endpoint

    @property
    def proxies(self) -> tuple[FaultProxy, FaultProxy]:
        return self.to_placement_driver, self.to_range_server

    def heal(self) -> None:
        for proxy in self.proxies:
            proxy.heal()


@contextmanager
def proxied_cluster(folder: Path, alterations: Sequence[str] = ()) -> Iterator[ProxiedCluster]:
    """Start a server behind proxies."""
    with ExitStack() as resources:
        driver_proxy, server_proxy = (resources.enter_context(FaultProxy()) for _ in range(2))
        advertised = {"range_server": {"advertise_port": server_proxy.port}}
        cluster = resources.enter_context(
            FaultCluster(folder, settings=advertised, alterations=alterations)
        )
        driver_proxy.target = cluster.endpoint
        server_proxy.target = f"127.0.0.1:{cluster.listening_port}"
        yield ProxiedCluster(cluster, driver_proxy, server_proxy)


@dataclass(frozen=True)
class Known:
    """The identity of a range server: known to itself and its placement driver."""

    server_id: int
    cluster_id: str
    secret: str

    @classmethod
    def of(cls, data_dir: Path) -> Known:
        """Read it from the range server's data directory."""
        content = json.loads((data_dir / "identity.json").read_text(encoding="utf-8"))
        return cls(content["server_id"], content["cluster_id"], content["server_secret"])

    async def prove(self, client: RawClient) -> None:
        """Let a connection be the placement driver's."""
        asked = HeartbeatRequest("pd", ClientRole.PD, cluster_id=self.cluster_id)
        (answer,) = await client.ask(Opcode.HEARTBEAT, asked)
        assert answer.status.code == StatusCode.PERMISSION_DENIED
        proof = proof_of(self.secret, answer.status.detail)
        proven = HeartbeatRequest(
            "pd", ClientRole.PD, cluster_id=self.cluster_id, server_secret=proof
        )
        (answer,) = await client.ask(Opcode.HEARTBEAT, proven)
        check_status(answer.status)


@asynccontextmanager
async def driver_at(endpoint: str, data_dir: Path) -> AsyncIterator[RawClient]:
    """A connection of the placement driver to the range server on `data_dir`."""
    async with RawClient.at(endpoint) as client:
        await Known.of(data_dir).prove(client)
        yield client


class DrivingClient(AsyncClient):
    """A client that proves to be the placement driver to servers, below `folder`, that ask."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        super().__init__(endpoint)
        self._folder = folder

    async def exchange(self, call: Call) -> list[Frame]:
        """Do what `call` does."""
        try:
            return await super().exchange(call)
        except PermissionDeniedError:
            known = [Known.of(path.parent) for path in self._folder.rglob("identity.json")]
            secrets = [each.secret for each in known]
            cluster_id = known[0].cluster_id
            await prove(self, call.endpoint, cluster_id, secrets)
        return await super().exchange(call)
