"""TLS between clients and servers: which end trusts which, its errors, and files that change."""

import asyncio
import gc
import logging
import os
import signal
from datetime import UTC, datetime, timedelta

import pytest

from sbp_core import limits
from sbp_core.cli.main import main as sbp
from sbp_core.client import (
    AppendItem,
    AsyncClient,
    Client,
    Connecting,
    FetchItem,
    StreamSpec,
    Transaction,
    Writer,
    txn_id_of,
)
from sbp_core.cluster import Cluster
from sbp_core.errors import (
    ConnectError,
    ConnectionLostError,
    PermissionDeniedError,
    SbpError,
    TlsError,
)
from sbp_core.settings.server_settings import ClusterSettings
from sbp_core.tls import Contexts
from sbp_core.wire.headers import ClientRole, HeartbeatRequest, ReportMetricsRequest
from sbp_core.wire.opcodes import Opcode
from tests.support.clock import until
from tests.support.cluster import rows_batch, values_of
from tests.support.listener import ONCE, ServedListener, ping_blocking
from tests.support.security import Authority
from tests.support.warm import WarmCluster


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("foreign"))


def refusal_of(endpoint, tls, kind=TlsError):
    with pytest.raises(kind) as raised:
        ping_blocking(endpoint, tls)
    return str(raised.value)


def test_a_client_trusts_only_a_valid_certificate_for_the_name_that_it_connects_to(
    authority, foreign
):
    tls = authority.client()
    with ServedListener(authority.server()) as server:
        ping_blocking(server.endpoint, tls)
        ping_blocking(f"localhost:{server.port}", tls)
        assert "of an unknown authority; name" in refusal_of(server.endpoint, foreign.client())
    with ServedListener(authority.server(authority.issue("elsewhere.example"))) as server:
        assert "is not for 127.0.0.1; connect to" in refusal_of(server.endpoint, tls)
    with ServedListener(authority.server(authority.issue_expired())) as server:
        assert "has expired; give the server a new one" in refusal_of(server.endpoint, tls)


def test_a_server_that_wants_certificates_says_which_it_refuses(authority, foreign):
    files = authority.server(client_ca_file=authority.ca_file)
    with ServedListener(files) as server:
        ping_blocking(server.endpoint, authority.client(authority.issue()))
        told = refusal_of(server.endpoint, authority.client())
        assert "it wants a certificate of the client; set cert_file" in told
        told = refusal_of(server.endpoint, authority.client(foreign.issue()))
        assert "it does not know the authority of our certificate" in told
        told = refusal_of(server.endpoint, authority.client(authority.issue_expired()))
        assert "our certificate has expired; renew it" in told


def test_only_an_authority_of_servers_vouches_for_a_server(authority, foreign, tmp_path):
    """It may do so through another one. An authority in client_ca_file only may not."""
    between = authority.issue_child(tmp_path)
    pairs = {"server": authority.issue(), "by another": between.issue(), "client": foreign.issue()}

    def may_be_servers(**options):
        server = Contexts(authority.server(**options))
        found = set()
        for name, pair in pairs.items():
            ours, theirs = server.server_channel(), Contexts(authority.client(pair))
            client = theirs.client_channel("127.0.0.1")
            while not (ours.is_open and client.is_open):
                client.shake_hands()
                ours.feed(memoryview(client.take()))
                ours.shake_hands()
                client.feed(memoryview(ours.take()))
            if ours.may_be_server:
                found.add(name)
        return found

    assert may_be_servers(client_ca_file=foreign.ca_file) == {"server", "by another"}
    both = tmp_path / "both.pem"
    both.write_bytes(authority.ca_file.read_bytes() + foreign.ca_file.read_bytes())
    assert may_be_servers(client_ca_file=both) == {"server", "by another"}


def test_plain_and_tls_on_one_port_are_told_apart(authority):
    with ServedListener(authority.server()) as server:
        told = refusal_of(server.endpoint, None, ConnectionLostError)
        assert "speaks TLS only: connect with TLS (ca_file of Tls, --tls-ca" in told
        assert "is `sbp serve` running" not in told
        ping_blocking(server.endpoint, authority.client())
    with ServedListener() as server:
        told = refusal_of(server.endpoint, authority.client())
        assert "does not speak TLS on this port; connect without TLS (leave out ca_file" in told
        ping_blocking(server.endpoint, None)


def test_new_handshakes_take_new_files_and_connections_live_on(authority, foreign, caplog):
    pair = authority.issue()
    connecting = Connecting(tls=authority.client())
    with (
        ServedListener(authority.server(pair)) as server,
        Client(server.endpoint, connecting=connecting, retry=ONCE) as living,
    ):
        living.ping()
        pair.replace_with(foreign.issue())
        ping_blocking(server.endpoint, foreign.client())
        refusal_of(server.endpoint, authority.client())
        pair.key_file.write_bytes(b"broken")
        with caplog.at_level(logging.WARNING):
            ping_blocking(server.endpoint, foreign.client())
            ping_blocking(server.endpoint, foreign.client())
        assert caplog.text.count("the former ones stay") == 1
        living.ping()
        until(lambda: server.listener.connection_count == 1)


def test_a_full_server_is_no_reason_to_distrust_it(authority):
    connecting = Connecting(tls=authority.client())
    full = {"connections_max": 1, "connections_reserved": 0}
    with (
        ServedListener(authority.server(), **full) as server,
        Client(server.endpoint, connecting=connecting, retry=ONCE) as first,
    ):
        first.ping()
        told = refusal_of(server.endpoint, authority.client(), ConnectError)
        assert "Connection reset" in told or "as a full server does" in told
        first.ping()


# With all servers, as `sbp serve` runs them.


@pytest.fixture(scope="module")
def served(authority, tmp_path_factory):
    """A cluster of which the servers have to show certificates, and clients need not."""
    pair = authority.issue()
    folder = tmp_path_factory.mktemp("served")
    with WarmCluster(folder, tls=authority.server(pair), options=["--log-level", "info"]) as it:
        it.pair = pair
        yield it


def connect(served, authority, pair=None, **options):
    connecting = Connecting(tls=authority.client(pair))
    return Client(served.endpoint, connecting=connecting, **options)


def read_all(client, stream_id):
    records, outcome = [], None
    while outcome is None or outcome.payload:
        item = FetchItem(stream_id, len(records), None, 16 * limits.MIB)
        (outcome,) = client.fetch([item])
        assert outcome.error is None
        records += values_of(outcome.payload)
    return [value for _, value in records]


def test_what_clients_do_works_over_tls(served, authority):
    large = [os.urandom(3 * limits.MIB) for _ in range(4)]
    with connect(served, authority) as client:
        first, second = client.create_streams([StreamSpec("first"), StreamSpec("second")])
        id_ = first.stream_id
        client.append([AppendItem(id_, rows_batch([b"1"])), AppendItem(id_, rows_batch([b"2"]))])
        with client.appender(writer=Writer()) as appender:
            for each in large:
                appender.append([AppendItem(id_, rows_batch([each]))])
            appender.finish()
        assert read_all(client, id_) == [b"1", b"2", *large]
        assert client.stream_bounds([id_])[0].next_offset == 6
        assert client.lookup_offsets({id_: 0}) == {id_: 0}
        client.commit_cursors("group", {id_: 3})
        assert client.describe_cursors("group")[0].next_offset == 3
        transaction = Transaction(txn_id_of("producer", 1, "0"))
        client.append([AppendItem(second.stream_id, rows_batch([b"a"]))], transaction=transaction)
        parts = transaction.parts()
        client.commit_txn("producer", 1, parts, record_count=1, digest=bytes(16))
        assert read_all(client, second.stream_id) == [b"a"]
        client.seal_streams([id_])
        client.append([AppendItem(id_, rows_batch([b"3"]))])
        client.trim_streams({id_: 1})
        assert client.describe_streams(["second"])[0].stream_id == second.stream_id
        assert len(client.range_servers()) == 1
        client.delete_streams([id_, second.stream_id])


def test_without_a_certificate_nobody_acts_as_a_server(served, authority):
    greeting = HeartbeatRequest(client_id="x", client_role=ClientRole.RANGE_SERVER)
    operations = [
        (served.endpoint, Opcode.HEARTBEAT, greeting),
        (served.endpoint, Opcode.REPORT_METRICS, ReportMetricsRequest()),
        (served.range_servers[0], Opcode.REPLICATE, None),
        (served.range_servers[0], Opcode.READ_ENTRIES, None),
        (served.range_servers[0], Opcode.SYNC_RANGES, None),
        (served.range_servers[0], Opcode.END_TXN, None),
    ]
    with connect(served, authority) as client:
        for each in operations:
            with pytest.raises(PermissionDeniedError, match="needs a connection with a certif"):
                client.call(*each)
    with connect(served, authority, authority.issue()) as client:
        told = [_fault_of(client, each) for each in operations]
    assert not any("needs a connection with a certif" in each for each in told)


def _fault_of(client, operation):
    """Why a call fails, now that the connection has a certificate; empty if it does not."""
    try:
        client.call(*operation)
    except SbpError as error:
        return str(error)
    return ""


def lose(server):
    """Let nobody hear of a server any more, as if its machine had failed."""
    for task in server._membership._tasks:
        task.cancel()
    server._listener._acceptor.close()
    for peer in [*server._listener._peers]:
        peer.abort()


def test_replicas_and_fail_over_need_nothing_but_the_files(authority, tmp_path):
    pair = authority.issue()

    async def body():
        settings = ClusterSettings(
            data_dir=tmp_path,
            pd_port=0,
            range_server_port=0,
            range_servers=3,
            heartbeat_interval_ms=50,
            heartbeat_timeout_ms=5_000,
            tls_cert_file=pair.cert_file,
            tls_key_file=pair.key_file,
            tls_ca_file=authority.ca_file,
            tls_client_ca_file=authority.ca_file,
        )
        cluster = Cluster(settings)
        await cluster.start()
        connecting = Connecting(tls=authority.client(pair))
        async with AsyncClient(cluster.endpoints.pd, connecting=connecting) as client:
            (stream,) = await client.create_streams([StreamSpec("copied", replica_count=3)])
            id_, writer = stream.stream_id, Writer()
            for number in range(3):
                item = AppendItem(id_, rows_batch([b"%d" % number]))
                await client.append([item], writer=writer)
            (placed,) = (await client.list_ranges([id_]))[id_]
            primary = next(
                each for each in cluster._range_servers if each.endpoint == placed.servers[0]
            )
            lose(primary)
            (outcome,) = await client.append([AppendItem(id_, rows_batch([b"3"]))], writer=writer)
            assert outcome.base_offset == 3
            found = []
            while len(found) < 4:
                item = FetchItem(id_, len(found), None, limits.MIB)
                (outcome,) = [each async for each in client.fetch([item])]
                found += [value for _, value in values_of(outcome.payload)]
            assert found == [b"0", b"1", b"2", b"3"]
        await cluster.stop()

    asyncio.run(asyncio.wait_for(body(), 60))


def test_servers_that_were_used_stop_without_a_fault(authority, tmp_path, caplog):
    """Their connections to each other are closed by either end first."""

    async def body():
        pair = authority.issue("127.0.0.1", "localhost")
        cluster = Cluster(
            ClusterSettings(
                data_dir=tmp_path,
                pd_port=0,
                range_server_port=0,
                tls_cert_file=pair.cert_file,
                tls_key_file=pair.key_file,
                tls_ca_file=authority.ca_file,
            )
        )
        await cluster.start()
        connecting = Connecting(tls=authority.client())
        async with AsyncClient(cluster.endpoints.pd, connecting=connecting) as client:
            (stream,) = await client.create_streams([StreamSpec("used")])
            await client.append([AppendItem(stream.stream_id, rows_batch([b"a"]))])
        await cluster.stop()

    asyncio.run(body())
    gc.collect()
    assert [each.getMessage() for each in caplog.records if each.name == "asyncio"] == []


def test_the_command_connects_with_options_and_variables(served, authority, monkeypatch, capsys):
    words = ["ping", "--endpoint", served.endpoint]
    assert sbp([*words, "--tls-ca", str(authority.ca_file)]) == 0
    monkeypatch.setenv("SBP_TLS_CA", str(authority.ca_file))
    assert sbp(words) == 0
    monkeypatch.setenv("SBP_TLS_CERT", str(served.pair.cert_file))
    monkeypatch.setenv("SBP_TLS_KEY", str(served.pair.key_file))
    assert sbp(words) == 0
    assert capsys.readouterr().out.count("answers in") == 3


def test_a_hang_up_reads_the_files_again(served, authority):
    good = served.pair.cert_file.read_bytes()

    def logged():
        return served.log_path.read_text()

    served.pair.cert_file.write_bytes(b"broken")
    os.kill(served.pid, signal.SIGHUP)
    until(lambda: "TLS files refused, the former ones stay" in logged())
    with connect(served, authority) as client:
        client.ping()
    served.pair.cert_file.write_bytes(good)
    count = logged().count("TLS files read again")
    os.kill(served.pid, signal.SIGHUP)
    until(lambda: logged().count("TLS files read again") > count)
    with connect(served, authority) as client:
        client.ping()
    ending = authority.issue(not_after=datetime.now(UTC) + timedelta(days=3))
    served.pair.replace_with(ending)
    os.kill(served.pid, signal.SIGHUP)
    until(lambda: f"certificate expires file={served.pair.cert_file}" in logged())
