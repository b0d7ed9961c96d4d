"""Identities that are not administrators: producers with an id, and what a query left staged."""

from contextlib import contextmanager

import pyarrow as pa
import pytest

import sbp_core as sbp
from sbp_core.access.rights import Grant, Right
from sbp_core.client import Credentials, StreamSpec
from sbp_core.errors import PermissionDeniedError
from sbp_core.tls import ServerTls
from sbp_spark.options.sink import BatchKey, parse_sink_options
from sbp_spark.writing.sinks import StagedFor, give_up_earlier_runs, write_rows
from tests.support.clock import until
from tests.support.security import AUDIENCE, ISSUER, Authority, Issuer
from tests.support.warm import WarmCluster

KEY = BatchKey("1" * 36, 5)
ROWS = pa.record_batch({"value": pa.array([b"x"] * 100, pa.binary())})


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Opens a connection as an identity. `writer` and `rival` may append to `orders`."""
    folder = tmp_path_factory.mktemp("identities")
    authority, issuer = Authority(folder / "authority"), Issuer(folder)
    pair = authority.issue("127.0.0.1", "localhost", common_name="node1")
    options = ("--auth-admin", "alice", "--auth-jwks-file", str(issuer.jwks_file))
    options += ("--auth-issuer", ISSUER, "--auth-audience", AUDIENCE)
    tls = ServerTls(pair.cert_file, pair.key_file, authority.ca_file)
    with WarmCluster(folder / "data", options=options, tls=tls) as cluster:

        @contextmanager
        def connected(subject):
            token_file = folder / subject
            token_file.write_bytes(issuer.token(subject))
            known = {"tls": authority.client(), "credentials": Credentials(token_file)}
            with sbp.connect(cluster.endpoint, **known) as connection:
                yield connection

        with connected("alice") as admin:
            for name in ("orders", "private"):
                admin.client.create_streams([StreamSpec(name)])
            grants = [Grant(each, Right.APPEND, "orders") for each in ("writer", "rival")]
            admin.client.change_grants([*grants, Grant("writer", Right.APPEND, "private")])
        yield connected


def test_a_producer_with_an_id_goes_on_and_is_only_its_owners(opened):
    with opened("writer") as writer:
        for expected in (0, 2):
            with writer.producer("orders", id="till-1") as producer:
                assert producer.position == expected
                producer.send(b"a")
                producer.send(b"b")
    with opened("rival") as rival:
        with pytest.raises(PermissionDeniedError, match="another identity than 'rival'"):
            rival.producer("orders", id="till-1").send(b"c")
        with pytest.raises(PermissionDeniedError, match="all producers are for an administrator"):
            rival.client.describe_txns()
    with opened("alice") as admin:
        assert len(admin.client.describe_txns()) == 2


def test_a_query_gives_up_what_its_earlier_run_left(opened):
    with opened("writer") as writer, opened("rival") as rival:

        def staged(client):
            return [each for each in client.describe_txns(KEY.producer) if each.server]

        for stream in ("orders", "private"):
            given = {"endpoint": "127.0.0.1:1", "stream": stream}
            options = parse_sink_options(given, streaming=True)
            write_rows([ROWS], writer.client, options, StagedFor(KEY, True, "a" * 12))
        assert len(staged(writer.client)) == 2
        with pytest.raises(PermissionDeniedError, match="another identity"):
            staged(rival.client)
        give_up_earlier_runs(writer.client, StagedFor(KEY, True, "b" * 12), overlap_ms=0)
        until(lambda: not staged(writer.client))
