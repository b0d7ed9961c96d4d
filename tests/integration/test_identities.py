"""Identities of peers: what certificates and tokens open, and what stays closed without them."""

import asyncio
import json
import logging
import os
import signal
import traceback
from dataclasses import replace
from pathlib import Path

import pytest

from sbp_core.access.identity import Identity, subject_of_certificate
from sbp_core.access.rights import Grant, Right
from sbp_core.access.tokens import LEEWAY_MS
from sbp_core.cli.main import main as sbp
from sbp_core.client import (
    AppendItem,
    AsyncClient,
    Client,
    Connecting,
    Credentials,
    FetchItem,
    StreamSpec,
)
from sbp_core.errors import ConfigurationError, PermissionDeniedError, UnauthenticatedError
from sbp_core.session.negotiation import identity_offer
from sbp_core.settings.listening import Exposure
from sbp_core.tls import ServerTls
from sbp_core.wire.headers import HeartbeatRequest
from tests.support.clock import until
from tests.support.cluster import rows_batch
from tests.support.security import (
    ONCE,
    Authority,
    Issuer,
    admin_of,
    connected,
    greet,
    identified_settings,
    identity_of_client,
    run,
    served,
)
from tests.support.warm import WarmCluster


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def settings(authority, issuer, tmp_path_factory):
    return identified_settings(authority, issuer, tmp_path_factory.mktemp("data"))


def identifying(client, endpoint):
    return client._pool._by_endpoint[endpoint]._conversation._identifying


def write_token(path, token):
    path.write_bytes(token)
    return Credentials(path)


def test_a_client_sends_its_token_and_renews_the_identity(settings, authority, issuer, tmp_path):
    path = tmp_path / "token"
    credentials = write_token(path, issuer.token(seconds=100))

    async def body():
        async with served(settings) as cluster:
            endpoint = cluster.endpoints.pd
            async with connected(endpoint, authority.client(), credentials=credentials) as client:
                await client.list_streams()
                first = identity_of_client(cluster).identity
                assert not identifying(client, endpoint).is_due
                write_token(path, issuer.token(seconds=200))
                identifying(client, endpoint)._due_at = 0.0
                await client.list_streams()
                await client.list_streams()
                second = identity_of_client(cluster).identity
                assert second.expires_at_ms > first.expires_at_ms
                assert not identifying(client, endpoint).is_due

    run(body())


def test_calls_wait_for_the_renewal_of_an_identity_that_has_ended(
    settings, authority, issuer, tmp_path
):
    credentials = write_token(tmp_path / "token", issuer.token())

    async def body():
        async with served(settings) as cluster:
            endpoint = cluster.endpoints.pd
            async with connected(endpoint, authority.client(), credentials=credentials) as client:
                await client.list_streams()
                identity_of_client(cluster).identity = Identity("etl", expires_at_ms=1)
                identifying(client, endpoint)._ends_at = 0.0
                await asyncio.gather(*(client.list_streams() for _ in range(3)))
                assert identity_of_client(cluster).identity.expires_at_ms > 1

    run(body())


def test_a_renewal_that_fails_leaves_the_identity_and_is_repeated(
    settings, authority, issuer, tmp_path, caplog
):
    path = tmp_path / "token"
    credentials = write_token(path, issuer.token())

    async def body():
        async with served(settings) as cluster:
            endpoint = cluster.endpoints.pd
            async with connected(endpoint, authority.client(), credentials=credentials) as client:
                await client.list_streams()
                before = identity_of_client(cluster).identity
                for content in (b"", issuer.token(seconds=-60), issuer.token("other")):
                    path.write_bytes(content)
                    identifying(client, endpoint)._due_at = 0.0
                    await client.list_streams()
                    await client.list_streams()
                    assert identity_of_client(cluster).identity == before
                assert caplog.text.count("identity not renewed") == 3
                for content, error in (
                    (b"", ConfigurationError),
                    (issuer.token(seconds=-60), UnauthenticatedError),
                ):
                    path.write_bytes(content)
                    identifying(client, endpoint)._ends_at = 0.0
                    with pytest.raises(error):
                        await client.list_streams()
                path.write_bytes(issuer.token())
                await client.list_streams()

    run(body())


def test_a_client_whose_clock_is_wrong_connects_again(settings, authority, issuer, tmp_path):
    credentials = write_token(tmp_path / "token", issuer.token())

    async def body():
        async with served(settings) as cluster:
            endpoint = cluster.endpoints.pd
            async with connected(endpoint, authority.client(), credentials=credentials) as client:
                await client.list_streams()
                identity_of_client(cluster).identity = Identity("etl", expires_at_ms=1)
                with pytest.raises(UnauthenticatedError, match="has ended"):
                    await client.list_streams()
                await client.list_streams()

    run(body())


def test_a_fetch_that_waits_is_answered_when_the_identity_ends(
    settings, authority, issuer, tmp_path
):
    leeway = LEEWAY_MS / 1000
    credentials = write_token(tmp_path / "token", issuer.token("alice", seconds=2 - leeway))

    async def body():
        async with served(settings) as cluster:
            admin = authority.client(admin_of(authority))
            async with connected(cluster.endpoints.pd, admin) as client:
                (stream,) = await client.create_streams([StreamSpec("waited-for")])
            tls = authority.client()
            async with connected(cluster.endpoints.pd, tls, credentials=credentials) as client:
                item = FetchItem(stream.stream_id, 0, None, 1000)
                async with asyncio.timeout(30):  # half of what it asks the server to wait
                    found = [each async for each in client.fetch([item], max_wait_ms=60_000)]
                assert not any(each.payload for each in found)

    run(body())


@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_no_log_and_no_error_has_the_token(settings, authority, issuer, tmp_path, caplog, make):
    """Servers and clients log at every level; one token is accepted, and one is not."""
    path, good, bad = tmp_path / "token", issuer.token(), issuer.token(seconds=-100)
    connecting = Connecting(tls=authority.client(), credentials=Credentials(path))
    caplog.set_level(logging.DEBUG)
    shown = []

    async def body():
        async with served(settings) as cluster:
            for token in (good, bad):
                path.write_bytes(token)
                client = make(cluster.endpoints.pd, connecting=connecting, retry=ONCE)
                shown.append(repr(vars(client)))
                try:
                    if make is Client:
                        await asyncio.to_thread(client.list_streams)
                    else:
                        await client.list_streams()
                except UnauthenticatedError as error:
                    shown.append("".join(traceback.format_exception(error)))
                await asyncio.to_thread(client.close) if make is Client else await client.close()

    run(body())
    assert "has expired" in shown[-1]
    request = HeartbeatRequest(client_id="c", features=(identity_offer(good),))
    everything = "".join([caplog.text, repr(connecting), repr(request), *shown])
    for secret in (good, bad):
        for part in secret.decode().split("."):
            assert part not in everything


def test_a_token_is_not_sent_without_tls(tmp_path):
    with pytest.raises(ConfigurationError, match="over TLS only"):
        Connecting(credentials=Credentials(tmp_path / "token"))


def test_the_command_sends_the_token(settings, authority, issuer, tmp_path, monkeypatch, capsys):
    path = tmp_path / "token"
    write_token(path, issuer.token())

    async def body():
        async with served(settings) as cluster:
            words = ["streams", "list", "--endpoint", cluster.endpoints.pd]
            words += ["--tls-ca", str(authority.ca_file)]
            assert await asyncio.to_thread(sbp, words) == 1
            assert "needs an identity" in capsys.readouterr().err
            assert await asyncio.to_thread(sbp, [*words, "--token-file", str(path)]) == 0
            monkeypatch.setenv("SBP_TOKEN", issuer.token().decode())
            assert await asyncio.to_thread(sbp, words) == 0
            monkeypatch.setenv("SBP_TOKEN_FILE", str(tmp_path / "missing"))
            assert await asyncio.to_thread(sbp, words) == 2
            assert "token file" in capsys.readouterr().err

    run(body())


def test_processes_have_the_same_settings_and_read_the_keys_again(
    settings, authority, issuer, tmp_path
):
    auth = ["--log-level", "info", "--auth-jwks-file", str(issuer.jwks_file)]
    auth += ["--auth-issuer", settings.auth_issuer, "--auth-audience", settings.auth_audience]
    auth += [word for each in ("alice", r"O=\"x\"") for word in ("--auth-admin", each)]
    files = ServerTls(
        settings.tls_cert_file,
        settings.tls_key_file,
        authority.ca_file,
        authority.ca_file,
        is_client_optional=True,
    )
    connecting = Connecting(
        tls=authority.client(), credentials=write_token(tmp_path / "token", issuer.token("alice"))
    )
    with WarmCluster(tmp_path / "data", range_servers=2, tls=files, options=auth) as cluster:
        with Client(cluster.endpoint, connecting=connecting) as client:
            (stream,) = client.create_streams([StreamSpec("s", replica_count=2)])
            assert list(client.fetch([FetchItem(stream.stream_id, 0, None, 1000)])) != []
        os.kill(cluster.pid, signal.SIGHUP)
        until(lambda: "keys of tokens read again" in cluster.log_path.read_text())


def test_who_may_delete_a_stream_is_refused_by_no_server(
    settings, authority, issuer, caplog, tmp_path
):
    """The range server asks for the rights on a stream that is deleted already."""
    caplog.set_level(logging.INFO, "sbp.audit")
    credentials = write_token(tmp_path / "token", issuer.token("janitor"))

    async def body():
        async with served(settings) as cluster:
            endpoint = cluster.endpoints.pd
            async with (
                connected(endpoint, authority.client(admin_of(authority))) as admin,
                connected(endpoint, authority.client(), credentials=credentials) as client,
            ):
                (stream,) = await admin.create_streams([StreamSpec("old")])
                await admin.append([AppendItem(stream.stream_id, rows_batch([b"x"]))])
                await admin.change_grants([Grant("janitor", Right.MANAGE, "old")])
                await client.delete_streams(["old"])

    run(body())
    events = [json.loads(each.message) for each in caplog.records if each.name == "sbp.audit"]
    deleted = [each for each in events if each["operation"] == "DELETE_STREAMS"]
    assert [(each["server"], each["outcome"]) for each in deleted] == [
        *(("placement driver", "done"), ("range server", "done")),
    ]


def test_a_refusal_names_the_certificate_that_does_not_count_beside_a_token(
    settings, authority, issuer, tmp_path
):
    """Each time, also after the token was renewed."""
    (tmp_path / "token").write_bytes(issuer.token("bob"))
    pair = authority.issue(common_name="robot")
    subject = subject_of_certificate(pair.cert_file.read_bytes())

    async def body():
        async with (
            served(replace(settings, data_dir=tmp_path / "data")) as cluster,
            connected(
                cluster.endpoints.pd,
                authority.client(pair),
                credentials=Credentials(tmp_path / "token"),
            ) as client,
        ):
            for _ in range(2):
                with pytest.raises(PermissionDeniedError) as caught:
                    await client.list_grants()
                assert caught.value.message.endswith(
                    f"name it in admins of [auth]; the token of bob counts, and the certificate of"
                    f" {subject} is not used beside a token: to use it, connect without one"
                )
                await greet(client, cluster.endpoints.pd, issuer.token("bob"))

    run(body())


def test_the_subject_of_a_certificate_is_escaped(authority):
    pair = authority.issue(common_name="a,b=c+d\\e", organization_name="Acme, Inc.")
    subject = subject_of_certificate(pair.cert_file.read_bytes())
    assert subject.startswith(r"CN=a\,b=c\+d\\e,")
    assert subject.endswith(r"O=Acme\, Inc.")
    for data in (b"", b"-----BEGIN CERTIFICATE-----", b"\x30\x03"):
        with pytest.raises(ValueError):
            subject_of_certificate(data)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"auth_admins": ()}, "without admins"),
        ({"auth_admins": ("",)}, "'' is not a subject"),
        ({"tls_client_certificates": "optional"}, "needs a token: set client_ca_file"),
        ({"auth_servers": ("node1",)}, "servers have certificates"),
        ({"auth_admins": ("O=Acme/CN=alice",)}, "write CN=alice,O=Acme, the most specific"),
        ({"auth_servers": ("CN=a,b",)}, "'CN=a,b' is not a subject: 'b' in it"),
        ({"auth_issuer": None}, "tokens need all"),
        ({"auth_audience": ""}, "tokens need all"),
        ({"auth_jwks_file": None}, "tokens need all"),
        ({"auth_jwks_url": "https://id.example.org"}, "one of them"),
        ({"auth_jwks_ca_file": Path("ca.pem")}, "jwks_ca_file without jwks_url"),
        ({"tls_cert_file": None, "tls_key_file": None, "tls_ca_file": None}, "needs TLS"),
    ],
)
def test_settings_that_do_not_belong_together_are_refused(settings, changed, why):
    with pytest.raises(ConfigurationError, match=why):
        replace(settings, **changed)


def test_with_identities_other_machines_may_connect(settings):
    of_driver = replace(settings, host="0.0.0.0", advertise_host="localhost").placement_driver()
    assert of_driver.exposure is Exposure.IDENTIFIED
