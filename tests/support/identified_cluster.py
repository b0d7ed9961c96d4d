"""A cluster whose servers want identities, and peers that show them."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from certificates import Authority, Pair
from identities import AUDIENCE, ISSUER, Issuer

from sbp_core.access.identity import subject_of_certificate
from sbp_core.client import AsyncClient, Connecting, RetryPolicy
from sbp_core.cluster import Cluster
from sbp_core.cluster_settings import ClusterSettings
from sbp_core.errors import PermissionDeniedError, SbpError, UnauthenticatedError
from sbp_core.session.negotiation import identity_offer, maybe_identity_end
from sbp_core.wire.headers import (
    REQUEST_TABLES,
    ClientRole,
    HeartbeatRequest,
    HeartbeatResponse,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import check_status

ONCE = RetryPolicy(budget_ms=1)


def admin_of(authority: Authority) -> Pair:
    """Return the certificate of an administrator, of whom the tests have one for each authority."""
    if "admin" not in vars(authority):
        authority.admin = authority.issue(common_name="alice")
    return authority.admin


def identified_settings(authority: Authority, issuer: Issuer, folder: Path) -> ClusterSettings:
    """Return the settings of a cluster with the administrators `alice` and `admin_of`."""
    pair = authority.issue("127.0.0.1", "localhost", common_name="node1")
    admin = subject_of_certificate(admin_of(authority).cert_file.read_bytes())
    return ClusterSettings(
        data_dir=folder,
        pd_port=0,
        range_server_port=0,
        tls_cert_file=pair.cert_file,
        tls_key_file=pair.key_file,
        tls_ca_file=authority.ca_file,
        auth_admins=("alice", admin),
        auth_jwks_file=issuer.jwks_file,
        auth_issuer=ISSUER,
        auth_audience=AUDIENCE,
    )


@contextlib.asynccontextmanager
async def served(settings):
    cluster = Cluster(settings)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


def run(body):
    asyncio.run(asyncio.wait_for(body, 60))


@contextlib.asynccontextmanager
async def connected(endpoint, tls, **options):
    connecting = Connecting(tls=tls, **options)
    async with AsyncClient(endpoint, connecting=connecting, retry=ONCE) as client:
        yield client


async def greet(client, endpoint, token, role=ClientRole.CLIENT):
    """Send a HEARTBEAT with a token; return when the identity ends. Raises why it is refused."""
    offered = () if token is None else (identity_offer(token),)
    request = HeartbeatRequest(client_id="c", client_role=role, features=offered)
    frames = await client.call(endpoint, Opcode.HEARTBEAT, request)
    answer = decode_header(HeartbeatResponse, frames[-1].header)
    check_status(answer.status)
    return maybe_identity_end(answer.features)


async def outcome(client, endpoint, opcode):
    """Why an empty request is refused by the gate; None if it passes."""
    try:
        await client.call(endpoint, opcode, REQUEST_TABLES[opcode]())
    except (UnauthenticatedError, PermissionDeniedError) as error:
        return type(error)
    except SbpError:
        return None
    return None


def identity_of_client(cluster):
    """The identity of the only client of the placement driver, and its connection there."""
    (peer,) = (
        each
        for each in cluster._placement_driver._listener._peers
        if each.standing.identity is not None and not each.standing.identity.is_server
    )
    return peer.standing
