"""Well-formed requests with senseless values, to both servers: no handler trips over them.

Neither does what decides about rights, over TLS: one peer there has rights on some streams.

An exception of a handler is answered with UNKNOWN and logged as an error: there must be none.
"""

import asyncio
import logging
import struct
from random import Random

import pytest
from msgspec.structs import replace

from sbp_core.access.rights import GRANTABLE, Grant
from sbp_core.client import AppendItem, StreamSpec
from sbp_core.errors import StatusCode
from sbp_core.session.negotiation import identity_offer
from sbp_core.wire._generated import LAYOUTS
from sbp_core.wire.flat import Bytes, Scalar, Table, Text
from sbp_core.wire.headers import (
    REQUEST_TABLES,
    RESPONSE_TABLES,
    FetchRequest,
    HeartbeatRequest,
    decode_header,
    decode_system_error,
)
from sbp_core.wire.opcodes import Opcode
from tests.support.cluster import core_cluster, rows_batch
from tests.support.security import (
    Authority,
    Issuer,
    admin_of,
    connected,
    identified_settings,
    served,
)
from tests.support.wire import RawClient

TYPES = {table.__name__: table for table in LAYOUTS}
TEXTS = ("", "x", "a" * 300, "../../etc", "\0", "host:99999", "[::", "\u202e", "127.0.0.1:1")
ROUNDS = 40


def number(rng, code):
    if code == "?":
        return rng.random() < 0.5
    bits = 8 * struct.calcsize(f"<{code}")
    low, high = (0, 2**bits - 1) if code.isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    chosen = rng.choice(
        (low, high, low + 1, high - 1, -2, -1, 0, 1, 1, 1, 2, rng.randint(low, high))
    )
    return min(max(chosen, low), high)


def content(rng, kind, depth):
    if isinstance(kind, Scalar):
        return number(rng, kind.code)
    if isinstance(kind, Text):
        return rng.choice((None, *TEXTS))
    if isinstance(kind, Bytes):
        return rng.randbytes(rng.choice((0, 1, 16, 500)))
    if isinstance(kind, Table):
        return value(rng, TYPES[kind.name], depth - 1) if depth and rng.random() < 0.7 else None
    if isinstance(kind.element, Table) and not depth:
        return ()
    items = [content(rng, kind.element, depth) for _ in range(rng.choice((0, 1, 1, 2, 5)))]
    return tuple("" if item is None and kind.element == Text() else item for item in items if item)


def value(rng, table, depth=4):
    made = table(
        **{
            field.name: content(rng, field.kind, depth)
            for field in LAYOUTS[table]
            if rng.random() < 0.8
        }
    )
    return replace(made, max_wait_ms=0) if table is FetchRequest else made


async def answer_codes(client, opcode, header, payload):
    codes = []
    for frame in await client.call(opcode, header, payload):
        if frame.is_system_error:
            codes.append(decode_system_error(frame.header).status.code)
        else:
            status = decode_header(RESPONSE_TABLES[opcode], frame.header).status
            codes.append(status.code if status else 0)
    return codes


async def send_all(client, seed):
    """Send each request often; return the status codes of the answers."""
    rng, codes = Random(seed), set()
    for opcode, table in [*REQUEST_TABLES.items()] * ROUNDS:
        header, payload = value(rng, table), rng.choice(([], [rows_batch([b"x"])]))
        found = await answer_codes(client, opcode, header, payload)
        assert StatusCode.UNKNOWN not in found, (opcode, header)
        codes.update(found)
    return codes


def run_quietly(caplog, body):
    with caplog.at_level(logging.ERROR):
        codes = asyncio.run(asyncio.wait_for(body, 120))
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
    return codes


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("is_driver", [True, False], ids=["placement driver", "range server"])
def test_no_handler_trips_over_senseless_values(tmp_path, caplog, seed, is_driver):
    async def body():
        async with core_cluster(tmp_path) as cluster:
            names = [f"stream-{number}" for number in range(3)]
            streams = await cluster.client.create_streams([StreamSpec(name) for name in names])
            for stream in streams:
                await cluster.client.append([AppendItem(stream.stream_id, rows_batch([b"v"]))])
            endpoint = cluster.pd.endpoint if is_driver else cluster.server.endpoint
            async with RawClient.at(endpoint) as client:
                return await send_all(client, seed)

    assert {StatusCode.NONE, StatusCode.UNSUPPORTED_OPERATION} < run_quietly(caplog, body())


@pytest.mark.parametrize("is_driver", [True, False], ids=["placement driver", "range server"])
@pytest.mark.parametrize(
    "subject",
    [
        None,
        "etl",
        *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("wrong", "alice")),
    ],
)
def test_no_decision_about_rights_trips_over_senseless_values(tmp_path, caplog, subject, is_driver):
    authority, issuer = Authority(tmp_path / "authority"), Issuer(tmp_path)
    settings = identified_settings(authority, issuer, tmp_path / "data")
    admin = authority.client(admin_of(authority))

    async def body():
        async with served(settings) as cluster:
            at = cluster.endpoints.pd if is_driver else cluster.endpoints.range_servers[0]
            async with connected(cluster.endpoints.pd, admin) as client:
                for name in ("a", "b"):
                    (stream,) = await client.create_streams([StreamSpec(name)])
                    await client.append([AppendItem(stream.stream_id, rows_batch([b"v"]))])
                await client.change_grants([Grant("etl", each, "a") for each in GRANTABLE])
            async with RawClient.at(at, tls=authority.client()) as hostile:
                if subject is not None:
                    offer = (identity_offer(issuer.token(subject)),)
                    (answer,) = await hostile.ask(
                        Opcode.HEARTBEAT, HeartbeatRequest("c", features=offer)
                    )
                    assert answer.status.code == StatusCode.NONE
                return await send_all(hostile, 1)

    codes = run_quietly(caplog, body())
    refusal = StatusCode.UNAUTHENTICATED if subject is None else StatusCode.PERMISSION_DENIED
    assert {StatusCode.NONE, refusal} <= codes
