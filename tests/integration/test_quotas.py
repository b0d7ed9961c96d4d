"""Quotas of identities on real servers: the one above its quota waits, and no other one does."""

import asyncio
import contextlib
import json
import os
import signal
import ssl
import urllib.request
from dataclasses import replace

import pytest

from sbp_core import limits
from sbp_core.access.identity import subject_of_certificate
from sbp_core.access.rights import Grant, Right
from sbp_core.client import AppendItem, Client, Connecting, Credentials, FetchItem, StreamSpec
from sbp_core.cluster import Cluster, ClusterSettings
from sbp_core.errors import ConfigurationError, ThrottledError
from sbp_core.server.quotas import WAIT_SECONDS_MAX
from sbp_core.tls import ServerTls
from sbp_core.wire.headers import (
    AppendInfo,
    AppendRequest,
    AppendResponse,
    FetchInfo,
    FetchRequest,
    FetchResponse,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.clock import until
from tests.support.cluster import rows_batch
from tests.support.security import (
    ONCE,
    Authority,
    Issuer,
    admin_of,
    connected,
    identified_settings,
    run,
)
from tests.support.warm import WarmCluster

RATE = 4
"""Requests in a second: so few that no machine is too slow to be above it."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("issuer"))


class Bench:
    """A cluster with quotas, and a stream that three identities may append to and read.

    `etl` and `dashboard` have tokens, `certified` a certificate, and `admin` may do anything.
    """

    def __init__(self, authority, issuer, folder, disk):
        pair = authority.issue(common_name="certified")
        self.certified = subject_of_certificate(pair.cert_file.read_bytes())
        self.connecting = {
            self.certified: Connecting(tls=authority.client(pair)),
            "admin": Connecting(tls=authority.client(admin_of(authority))),
        }
        for subject in ("etl", "dashboard"):
            token = folder / f"{subject}.token"
            token.write_bytes(issuer.token(subject))
            self.connecting[subject] = Connecting(
                tls=authority.client(), credentials=Credentials(token)
            )
        self.disk = disk

    @contextlib.asynccontextmanager
    async def serving(self, settings):
        cluster = Cluster(settings, disk=self.disk)
        await cluster.start()
        try:
            self.driver = cluster.endpoints.pd
            (self.endpoint,) = cluster.endpoints.range_servers
            (server,) = cluster._range_servers
            self.listener = server._listener
            async with self.client("admin") as admin:
                (stream,) = await admin.create_streams([StreamSpec("s")])
                subjects = self.connecting.keys() - {"admin"}
                rights = (Right.APPEND, Right.READ)
                await admin.change_grants(
                    [Grant(s, each, "s") for s in subjects for each in rights]
                )
            self.stream_id = stream.stream_id
            yield
        finally:
            if self.disk is not None:
                self.disk.gate.set()
            await cluster.stop()

    def client(self, subject):
        connecting = self.connecting[subject]
        return connected(self.driver, connecting.tls, credentials=connecting.credentials)

    async def append(self, client, value):
        """Append in one call; return the wait that is asked for, in ms."""
        batch = rows_batch([value])
        info = AppendInfo(stream_id=self.stream_id, batch_length=len(batch))
        request = AppendRequest(append_requests=(info,))
        frames = await client.call(self.endpoint, Opcode.APPEND, request, [batch])
        answer = decode_header(AppendResponse, frames[-1].header)
        assert answer.append_responses[0].status.code == 0
        return answer.throttle_time_ms

    async def fetch(self, client):
        """Fetch from the begin in one call; return the wait that is asked for, in ms."""
        info = FetchInfo(stream_id=self.stream_id, fetch_offset=0, batch_max_bytes=limits.MIB)
        request = FetchRequest(fetch_requests=(info,))
        frames = await client.call(self.endpoint, Opcode.FETCH, request)
        answer = decode_header(FetchResponse, frames[-1].header)
        assert len(frames[-1].payload) > 0
        return answer.throttle_time_ms

    async def end_offset(self, client):
        (bounds,) = await client.stream_bounds([self.stream_id])
        return bounds.next_offset


@pytest.fixture
def benched(authority, issuer, tmp_path):
    """Run `body` with a bench whose servers have these quotas."""

    def run_body(quotas, body, disk=None):
        async def main():
            bench = Bench(authority, issuer, tmp_path, disk)
            file = tmp_path / "quotas.toml"
            file.write_text(quotas.format(certified=bench.certified), encoding="utf-8")
            settings = identified_settings(authority, issuer, tmp_path / "data")
            async with bench.serving(replace(settings, quotas_file=file)):
                await body(bench)

        run(main())

    return run_body


@pytest.mark.parametrize("name", ["etl", pytest.param("certified", marks=pytest.mark.exhaustive)])
def test_an_identity_above_its_rate_is_asked_to_wait_and_no_other_one_is(benched, name):
    """Its connections share its quota. All appends arrive."""

    async def body(bench):
        subject = bench.certified if name == "certified" else name
        async with contextlib.AsyncExitStack() as opened:
            names = (subject, subject, subject, "dashboard", "admin")
            clients = [await opened.enter_async_context(bench.client(each)) for each in names]
            rounds = RATE
            appends = [bench.append(each, b"x") for _ in range(rounds) for each in clients]
            waits = await asyncio.gather(*appends)
            (found,) = [
                each
                async for each in clients[3].fetch(
                    [FetchItem(bench.stream_id, 0, len(waits), limits.MIB)]
                )
            ]
            assert found.next_offset == len(waits)
        assert max(waits[3::5] + waits[4::5]) == 0
        above = [each for at in range(3) for each in waits[at::5] if each]
        assert len(above) >= RATE
        assert bench.listener._quotas.throttled_count == len(above)
        assert max(above) <= 1000 * WAIT_SECONDS_MAX

    benched(
        f'[quotas."{{certified}}"]\nrequests_per_s = {RATE}\n'
        f"[quotas.etl]\nrequests_per_s = {RATE}\n",
        body,
    )


def test_too_many_connections_of_an_identity_are_refused(benched, monkeypatch):
    monkeypatch.setattr(limits, "SPARED_CONNECTION_MS", 600_000)
    monkeypatch.setattr(limits, "UNUSED_CONNECTION_MS", 600_000)

    async def body(bench):
        async with contextlib.AsyncExitStack() as opened:
            first = await opened.enter_async_context(bench.client("etl"))
            await bench.append(first, b"x")
            async with bench.client("etl") as second:
                await bench.append(second, b"x")
                third = await opened.enter_async_context(bench.client("etl"))
                for _ in range(2):
                    with pytest.raises(ThrottledError, match=r"etl has 2 connections.*raise conn"):
                        await bench.append(third, b"x")
                other = await opened.enter_async_context(bench.client("dashboard"))
                await bench.append(other, b"x")
            while len(bench.listener._quotas.meter_of("etl").connections) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await bench.append(third, b"x")
            assert bench.listener._quotas.refused_count == 2

    benched("[quotas.etl]\nconnections = 2\n", body)


def test_quotas_need_identities(tmp_path):
    file = tmp_path / "quotas.toml"
    file.write_text("[quotas]\nconnections = 0\n", encoding="utf-8")
    settings = ClusterSettings(
        data_dir=tmp_path / "data", pd_port=0, range_server_port=0, quotas_file=file
    )

    async def start():
        cluster = Cluster(settings)
        await cluster.start()
        await cluster.stop()

    run(start())
    file.write_text("[quotas]\nconnections = 1\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"\[quotas\] needs identities.*--auth-admin"):
        run(start())


def test_processes_read_the_quotas_again(authority, issuer, tmp_path):
    """A limit is raised for range servers that are processes of their own."""
    settings = identified_settings(authority, issuer, tmp_path)
    file = tmp_path / "quotas.toml"
    file.write_text("[quotas.etl]\nconnections = 1\n", encoding="utf-8")
    options = ["--quotas-file", str(file), "--auth-jwks-file", str(issuer.jwks_file)]
    options += ["--admin-port", "0", "--log-level", "info"]
    options += ["--auth-issuer", settings.auth_issuer, "--auth-audience", settings.auth_audience]
    options += [word for each in settings.auth_admins for word in ("--auth-admin", each)]
    admin_pair = admin_of(authority)
    files = ServerTls(settings.tls_cert_file, settings.tls_key_file, authority.ca_file)
    admin = Connecting(tls=authority.client(admin_pair))
    (tmp_path / "token").write_bytes(issuer.token("etl"))
    etl = Connecting(tls=authority.client(), credentials=Credentials(tmp_path / "token"))
    with contextlib.ExitStack() as opened:
        cluster = opened.enter_context(
            WarmCluster(tmp_path / "data", range_servers=2, tls=files, options=options)
        )
        with Client(cluster.endpoint, connecting=admin) as client:
            (stream,) = client.create_streams([StreamSpec("s")])
            client.change_grants([Grant("etl", Right.APPEND, "s")])
        items = [AppendItem(stream.stream_id, rows_batch([b"x"]))]

        def append():
            opened.enter_context(Client(cluster.endpoint, connecting=etl, retry=ONCE)).append(items)

        append()
        with pytest.raises(ThrottledError, match="its quota at this server"):
            append()
        file.write_text("[quotas.etl]\nconnections = 2\n", encoding="utf-8")
        os.kill(cluster.pid, signal.SIGHUP)
        until(lambda: cluster.log_path.read_text().count("quotas read again") == 3)
        changed = "quota changed identity=etl key=connections former=1 value=2"
        assert cluster.log_path.read_text().count(changed) == 3
        append()
        endpoint = json.loads((tmp_path / "data" / "ready.json").read_text())["admin"]
        tls = ssl.create_default_context(cafile=authority.ca_file)
        tls.load_cert_chain(admin_pair.cert_file, admin_pair.key_file)
        with urllib.request.urlopen(f"https://{endpoint}/config", context=tls) as answer:
            quotas = json.load(answer)["quotas"]
        assert quotas["by_subject"]["etl"]["connections"] == 2
        assert quotas["default"]["connections"] == 0
        file.write_text("[quotas.etl]\nconnections = true\n", encoding="utf-8")
        os.kill(cluster.pid, signal.SIGHUP)
        until(lambda: cluster.log_path.read_text().count("the former ones stay") == 3)
