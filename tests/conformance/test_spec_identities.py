"""Identities: the operations that need one, and how a connection gets and keeps it."""

import os
from dataclasses import replace

import pytest

from sbp_core.access.identity import Identity
from sbp_core.errors import PermissionDeniedError, UnauthenticatedError
from sbp_core.wire.headers import REQUEST_TABLES, ClientRole
from sbp_core.wire.opcodes import Opcode
from tests.support.security import (
    Authority,
    Issuer,
    admin_of,
    connected,
    greet,
    identified_settings,
    outcome,
    run,
    served,
)

pytestmark = pytest.mark.skipif(
    "SBP_CONFORMANCE_ENDPOINT" in os.environ, reason="it needs servers with its own authority"
)

FOR_SERVERS = {
    *(Opcode.ALLOCATE_ID, Opcode.REPORT_METRICS, Opcode.CHECK_RIGHTS, Opcode.END_TXN),
    *(Opcode.READ_ENTRIES, Opcode.REPLICATE, Opcode.SYNC_RANGES),
}
OTHERS = sorted({*REQUEST_TABLES} - FOR_SERVERS - {Opcode.HEARTBEAT, Opcode.PING, Opcode.GOAWAY})


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def settings(authority, issuer, tmp_path_factory):
    return identified_settings(authority, issuer, tmp_path_factory.mktemp("data"))


def test_without_an_identity_only_heartbeats_and_pings_are_answered(settings, authority):
    """*EXT* "Identities". Rule: identity-required, identity-servers."""

    async def body():
        async with served(settings) as cluster:
            for endpoint in (cluster.endpoints.pd, *cluster.endpoints.range_servers):
                async with connected(endpoint, authority.client()) as client:
                    await client.call(endpoint, Opcode.PING, None)
                    assert await greet(client, endpoint, None) is None
                    for opcode in (*OTHERS, *FOR_SERVERS):
                        assert await outcome(client, endpoint, opcode) is UnauthenticatedError
                    for role in (ClientRole.RANGE_SERVER, ClientRole.PD):
                        with pytest.raises(UnauthenticatedError, match="needs an identity"):
                            await greet(client, endpoint, None, role)

    run(body())


@pytest.mark.parametrize("kind", ["token", "certificate"])
def test_an_identity_opens_all_but_what_is_for_servers(settings, authority, issuer, kind):
    """*EXT* "Identities". Rule: identity-servers."""
    tls, token = authority.client(), issuer.token("alice")
    if kind == "certificate":
        tls, token = authority.client(admin_of(authority)), None

    async def body():
        async with served(settings) as cluster:
            for endpoint in (cluster.endpoints.pd, *cluster.endpoints.range_servers):
                async with connected(endpoint, tls) as client:
                    await greet(client, endpoint, token)
                    for opcode in OTHERS:
                        assert await outcome(client, endpoint, opcode) is None or (
                            opcode is Opcode.SEAL_RANGE
                        )
                    for opcode in FOR_SERVERS:
                        assert await outcome(client, endpoint, opcode) is PermissionDeniedError
                    for role in (ClientRole.RANGE_SERVER, ClientRole.PD):
                        with pytest.raises(PermissionDeniedError, match="servers of the cluster"):
                            await greet(client, endpoint, None, role)

    run(body())


def test_a_token_that_is_refused_changes_nothing(settings, authority, issuer, tmp_path):
    """*EXT* "Identities". Rule: identity-refused, identity-renewed."""
    stranger = Issuer(tmp_path)

    async def body():
        async with served(settings) as cluster:
            endpoint = cluster.endpoints.pd
            async with connected(endpoint, authority.client()) as client:
                for token in (stranger.token(), issuer.token(seconds=-60), b"", b"x" * 9000):
                    with pytest.raises(UnauthenticatedError, match="the token is refused"):
                        await greet(client, endpoint, token)
                    assert await outcome(client, endpoint, Opcode.DESCRIBE_STREAMS) is (
                        UnauthenticatedError
                    )
                first = await greet(client, endpoint, issuer.token(seconds=100))
                with pytest.raises(UnauthenticatedError, match="open another connection"):
                    await greet(client, endpoint, issuer.token("other"))
                with pytest.raises(UnauthenticatedError, match="expired"):
                    await greet(client, endpoint, issuer.token(seconds=-60))
                assert await outcome(client, endpoint, Opcode.DESCRIBE_STREAMS) is None
                assert await greet(client, endpoint, issuer.token(seconds=200)) == first + 100_000

    run(body())


def test_an_identity_that_has_ended_opens_nothing_until_it_is_renewed(settings, authority, issuer):
    """*EXT* "Identities". Rule: identity-required, identity-renewed."""

    async def body():
        async with served(settings) as cluster:
            endpoint = cluster.endpoints.pd
            async with connected(endpoint, authority.client()) as client:
                await greet(client, endpoint, issuer.token())
                (peer,) = (
                    each
                    for each in cluster._placement_driver._listener._peers
                    if each.standing.identity is not None and not each.standing.identity.is_server
                )
                assert peer.standing.identity.subject == "etl"
                peer.standing.identity = Identity("etl", expires_at_ms=1)
                assert (
                    await outcome(client, endpoint, Opcode.DESCRIBE_STREAMS) is UnauthenticatedError
                )
                with pytest.raises(UnauthenticatedError, match="another connection"):
                    await greet(client, endpoint, issuer.token("other"))
                await greet(client, endpoint, issuer.token())
                assert await outcome(client, endpoint, Opcode.DESCRIBE_STREAMS) is None

    run(body())


def test_the_certificate_of_a_server_is_not_replaced_by_a_token(settings, authority, issuer):
    """*EXT* "Identities". Rule: identity-refused."""
    pair = (settings.tls_cert_file, settings.tls_key_file)

    async def body():
        async with served(settings) as cluster:
            endpoint = cluster.endpoints.pd
            tls = replace(authority.client(), cert_file=pair[0], key_file=pair[1])
            async with connected(endpoint, tls) as client:
                with pytest.raises(UnauthenticatedError, match="needs no token"):
                    await greet(client, endpoint, issuer.token())
                for opcode in (*OTHERS, *FOR_SERVERS):
                    assert await outcome(client, endpoint, opcode) is not UnauthenticatedError

    run(body())
