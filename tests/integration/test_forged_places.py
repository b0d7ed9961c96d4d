"""A client does not read the log of another server that a server names in its answer."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import closing

import pytest
from local_reads import append, large_batch, new_stream, run
from scripted_peer import ScriptedPeer, placed, ranges

from sbp_core.client import Client, FetchItem
from sbp_core.segment_format import INSTANCE_NAME, encode_instance
from sbp_core.sockets import is_own_address
from sbp_core.wire.headers import (
    BatchPlace,
    FetchInfo,
    FetchRequest,
    FetchResponse,
    FetchResult,
    HeartbeatResponse,
    StreamRange,
    decode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS


class Forger(ScriptedPeer):
    """A placement driver and range server that gives places of another log for its own."""

    def __init__(self, cluster_id: str | None, directory: str, instance: str) -> None:
        super().__init__()
        self.places: tuple[BatchPlace, ...] = ()
        self.directory, self.instance = directory, instance
        self.asked_for_places = 0
        self.own = large_batch(1, seed=99)
        self.script(
            Opcode.HEARTBEAT, lambda each: each.answer(HeartbeatResponse(cluster_id=cluster_id))
        )
        self.script(Opcode.LIST_RANGES, ranges(placed(1, 0, 0, -1, self.endpoint)))
        self.script(Opcode.FETCH, self._fetch)

    def _fetch(self, exchange) -> None:
        if exchange.header.takes_places:
            self.asked_for_places += 1
            result = FetchResult(1, 0, 1, SUCCESS, 0, 2, self.places)
            exchange.answer(FetchResponse(0, (result,), SUCCESS, self.directory, self.instance))
        else:
            result = FetchResult(1, 0, 1, SUCCESS, len(self.own), 2)
            exchange.answer(FetchResponse(fetch_responses=(result,)), [self.own])


def fetched_from(forger: Forger) -> bytes:
    with Client(forger.endpoint) as client:
        (outcome,) = client.fetch([FetchItem(1, 0, None, 1 << 20)])
        assert outcome.error is None
        return bytes(outcome.payload)


@pytest.mark.parametrize("cluster_id", ["another", None])
def test_the_log_of_another_cluster_stays_closed(tmp_path, caplog, cluster_id):
    caplog.set_level(logging.DEBUG, "sbp_core.client")

    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, [1])
        directory = tmp_path.resolve() / "rs" / "log"
        content = (directory / INSTANCE_NAME).read_text()
        instance, true_cluster = content.split()
        assert content.encode() == encode_instance(instance, true_cluster)
        forger = Forger(cluster_id, str(directory), instance)
        with closing(forger):
            forger.places = await _places(cluster, stream_id)
            payload = await asyncio.to_thread(fetched_from, forger)
            assert payload == forger.own
            assert forger.asked_for_places == 1

    run(tmp_path, body)
    logged = [each for each in caplog.records if "local_log" in each.name]
    assert logged
    assert all(each.levelno == logging.DEBUG for each in logged)


async def _places(cluster, stream_id) -> tuple[BatchPlace, ...]:
    """The place of a batch as the true server reports it."""
    item = FetchInfo(StreamRange(stream_id, 0), 0, 0, 1 << 20, stream_id, -1)
    request = FetchRequest(0, 1, (item,), 0, takes_places=True)
    endpoint = cluster.server.endpoint
    (frame,) = await cluster.client.call(endpoint, Opcode.FETCH, request)
    (result,) = decode_header(FetchResponse, frame.header).fetch_responses
    assert result.places
    return result.places


def test_a_server_rewrites_what_an_earlier_version_left(tmp_path):
    async def body(cluster):
        stream_id = await new_stream(cluster)
        await append(cluster, stream_id, [1])
        content = (tmp_path / "rs" / "log" / INSTANCE_NAME).read_text()
        assert len(content.split()) == 2

    run(tmp_path, body)
    (tmp_path / "rs" / "log" / INSTANCE_NAME).write_text("0123456789abcdef")
    run(tmp_path, body)


def test_the_address_of_the_connection_decides_whether_a_server_is_local():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()[:2]) as connected,
    ):
        assert is_own_address(connected)

    class Elsewhere:
        def getpeername(self):
            return ("192.0.2.7", 80)

        def getsockname(self):
            return ("192.0.2.8", 5000)

    assert not is_own_address(Elsewhere())
    assert not is_own_address(socket.socket())
