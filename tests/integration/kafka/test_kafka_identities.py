"""Clients of Kafka sign in by SASL, and have the rights of their tokens and no others."""

import contextlib
import ssl

import pytest
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError
from confluent_kafka import Consumer, KafkaException, TopicPartition

from sbp_core.access.rights import Grant, Right
from sbp_core.client import Client, Connecting, Credentials, StreamSpec
from sbp_core.tls import ServerTls
from tests.support.clock import until
from tests.support.kafka import KafkaProcess, aio_producer, poll, produce_all, run
from tests.support.kafka_wire import RawKafka, encode_request
from tests.support.security import AUDIENCE, ISSUER, Authority, Issuer
from tests.support.warm import WarmCluster

HANDSHAKE, AUTHENTICATE, METADATA, VERSIONS = 17, 36, 3, 18


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory, authority, issuer):
    """A gateway with TLS, of a cluster that wants identities."""
    pair = authority.issue("127.0.0.1", "localhost", common_name="node1")
    files = ServerTls(pair.cert_file, pair.key_file, authority.ca_file)
    options = ("--auth-admin", "alice", "--auth-jwks-file", str(issuer.jwks_file))
    options += ("--auth-issuer", ISSUER, "--auth-audience", AUDIENCE)
    folder = tmp_path_factory.mktemp("cluster")
    token_file = folder / "token"
    token_file.write_bytes(issuer.token("alice"))
    grants = [
        Grant("writer", Right.APPEND, "orders"),
        Grant("reader", Right.READ, "orders"),
        Grant("reader", Right.GROUP, "readers"),
        Grant("gateway", Right.GROUP, "_kafka-gateways"),
    ]
    with contextlib.ExitStack() as started:
        cluster = WarmCluster(folder / "data", options=options, tls=files)
        started.enter_context(cluster)
        how = Connecting(tls=authority.client(), credentials=Credentials(token_file))
        with Client(cluster.endpoint, connecting=how) as client:
            client.create_streams([StreamSpec("orders"), StreamSpec("secret")])
            client.change_grants(grants)
        own = folder / "gateway"
        own.write_bytes(issuer.token("gateway"))
        words = ("--host", "0.0.0.0", "--advertise-host", "127.0.0.1")
        words += ("--listener-cert", str(pair.cert_file), "--listener-key", str(pair.key_file))
        words += ("--tls-ca", str(authority.ca_file), "--token-file", str(own))
        words += ("--log-file", str(folder / "log"), "--log-level", "debug")
        gateway = started.enter_context(KafkaProcess.serving(folder, cluster.endpoint, *words))
        yield gateway
        assert "Traceback" not in (folder / "log").read_text()
        assert "not registered" not in (folder / "log").read_text()


@pytest.fixture(scope="module")
def config(secured, authority):
    """The settings of librdkafka with the token of a subject."""

    def make(token, mechanism="PLAIN"):
        found = {
            "bootstrap.servers": f"127.0.0.1:{secured.port}",
            "broker.address.family": "v4",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(authority.ca_file),
            "sasl.mechanism": mechanism,
            "message.timeout.ms": 60_000,
        }
        if mechanism == "PLAIN":
            return found | {"sasl.username": "anyone", "sasl.password": token.decode()}
        return found | {"oauth_cb": lambda _: (token.decode(), 4_000_000_000)}

    return make


def consumer_config(found, group):
    del found["message.timeout.ms"]
    return found | {"group.id": group, "auto.offset.reset": "earliest"}


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_each_client_has_the_rights_of_its_token(config, issuer, mechanism):
    writer, reader = (config(issuer.token(each), mechanism) for each in ("writer", "reader"))
    produce_all(writer, "orders", [{"value": mechanism.encode()}])
    with pytest.raises(AssertionError, match=r"[Aa]uthoriz"):
        produce_all(reader, "orders", [{"value": b"refused"}])
    soon = writer | {"message.timeout.ms": 1_000}
    if mechanism == "PLAIN":
        with pytest.raises(AssertionError, match=r"[Uu]nknown|[Aa]uthoriz|timed out"):
            produce_all(soon, "secret", [{"value": b"refused"}])
    consumer = Consumer(consumer_config(reader, "readers"))
    consumer.subscribe(["orders"])
    values = [each.value() for each in poll(consumer, 1)]
    consumer.close()
    assert values[0] in {b"PLAIN", b"OAUTHBEARER"}
    assert b"refused" not in values


def test_a_group_without_the_right_to_it_is_refused(config, issuer):
    consumer = Consumer(consumer_config(config(issuer.token("reader")), "others"))
    consumer.subscribe(["orders"])
    errors = []

    def is_refused():
        message = consumer.poll(0.2)
        if message is not None:
            errors.append(message.error())
        return errors

    until(is_refused, 60)
    assert "GROUP_AUTHORIZATION_FAILED" in errors[0].name()
    with pytest.raises(KafkaException, match=r"[Aa]uthoriz"):
        consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    consumer.close()


def test_a_writer_reads_nothing(config, issuer):
    consumer = Consumer(consumer_config(config(issuer.token("writer")), "any"))
    consumer.assign([TopicPartition("orders", 0, 0)])
    errors = []

    def is_refused():
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is not None, "it reads"
            errors.append(message.error().name())
        return errors

    until(is_refused, 60)
    assert errors == ["TOPIC_AUTHORIZATION_FAILED"]
    consumer.close()


class Tokens(AbstractTokenProvider):
    def __init__(self, token):
        self._token = token

    async def token(self):
        return self._token.decode()


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_aiokafka_signs_in(secured, authority, issuer, tmp_path, mechanism):
    def options(token):
        found = {"sasl_plain_username": "any", "sasl_plain_password": token.decode()}
        if mechanism == "OAUTHBEARER":
            found = {"sasl_oauth_token_provider": Tokens(token)}
        return found | {
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cafile=authority.ca_file),
            "sasl_mechanism": mechanism,
        }

    async def body():
        address = f"127.0.0.1:{secured.port}"
        async with aio_producer(address, **options(issuer.token("writer"))) as producer:
            await producer.send_and_wait("orders", b"a")
        refused = issuer.token("writer", seconds=-600), Issuer(tmp_path).token("writer"), b"a.b.c"
        for token in refused:
            with pytest.raises(KafkaError):
                async with aio_producer(address, **options(token)):
                    pass

    run(body)


def connecting(secured, authority):
    context = ssl.create_default_context(cafile=authority.ca_file)
    return RawKafka.at(f"127.0.0.1:{secured.port}", ssl=context)


def test_a_client_that_has_not_signed_in_only_learns_how(secured, authority):
    async def body():
        async with connecting(secured, authority) as client:
            assert (await client.ask(VERSIONS, 0)).error_code == 0
            client.send(encode_request(METADATA, 1, topics=None))
            assert await client.is_closed()
        async with connecting(secured, authority) as client:
            refused = await client.ask(AUTHENTICATE, 2, auth_bytes=b"\0a\0b")
            assert refused.error_code.name == "illegal_sasl_state"
            refused = await client.ask(HANDSHAKE, 1, mechanism="GSSAPI")
            assert refused.error_code.name == "unsupported_sasl_mechanism"
            assert refused.mechanisms == ("PLAIN", "OAUTHBEARER")
            client.writer.write((1 << 20).to_bytes(4, "big"))  # before it has signed in
            assert await client.is_closed()

    run(body)


def test_tokens_that_are_none_are_refused(secured, authority):
    sent = [
        ("PLAIN", b""),
        ("PLAIN", b"\0\0"),
        ("PLAIN", b"\0user\0two words"),
        ("PLAIN", b"\0user\0" + b"a" * 60_000),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer \x01\x01"),
        ("OAUTHBEARER", b"\xff" * 100),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer a.b.c\x01\x01"),
    ]

    async def body():
        async with connecting(secured, authority) as client:
            for mechanism, auth_bytes in sent:
                assert (await client.ask(HANDSHAKE, 1, mechanism=mechanism)).error_code == 0
                refused = await client.ask(AUTHENTICATE, 2, auth_bytes=auth_bytes)
                assert refused.error_code.name == "sasl_authentication_failed"
                assert refused.error_message
            client.send(encode_request(METADATA, 1, topics=None))
            assert await client.is_closed()

    run(body)
