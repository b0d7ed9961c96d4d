"""Producers and consumers of a stream whose only range server is down."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbp_core import connect, limits
from sbp_core.errors import ConfigurationError, SbpError
from tests.support.machines import Machine, Machines


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    """A cluster with the streams `orders` and `audit`, which has one record: its server is down."""
    with Machines(tmp_path, range_servers=1) as machines:
        with connect(machines.endpoint) as sbp:
            sbp.create_stream("orders")
            sbp.create_stream("audit")
            with sbp.producer("audit") as producer:
                producer.send(b"before")
        machines.servers[0].kill()
        yield machines


@pytest.fixture
def server(machines: Machines) -> Machine:
    """The range server, which is down."""
    return machines.servers[0]


def test_records_are_collected_and_delivered_when_the_server_is_back(machines, server):
    with (
        connect(machines.endpoint, retry_ms=math.inf) as sbp,
        sbp.producer() as producer,
        sbp.producer("orders") as rows,
    ):
        deliveries = [producer.send(b"%d" % each, stream="orders") for each in range(3)]
        last = rows.send_many([{"value": b"row"}])
        assert not any(each.done() for each in (*deliveries, last))
        server.start()
        assert [each.result(60) for each in deliveries] == sorted(
            each.result() for each in deliveries
        )
        assert sorted((*(each.result() for each in deliveries), last.result(60))) == [0, 1, 2, 3]


@pytest.mark.parametrize("producer_id", [None, "etl"])
def test_the_error_names_the_stream_the_server_and_the_append(machines, server, producer_id):
    with connect(machines.endpoint, retry_ms=100) as sbp:
        producer = sbp.producer("orders", id=producer_id)
        delivery = producer.send(b"lost")
        with pytest.raises(
            SbpError, match=f"^stream orders: .*APPEND at {server.endpoint}"
        ) as error:
            delivery.result(60)
        with pytest.raises(SbpError, match=r"^stream orders: .*APPEND"):
            producer.close()
    assert "HEARTBEAT" not in str(error.value)


def test_a_large_record_is_collected_and_refused_when_the_server_is_back(machines, server):
    with connect(machines.endpoint, retry_ms=math.inf) as sbp:
        producer = sbp.producer("orders")
        delivery = producer.send(bytes(limits.BATCH_BYTES_MAX))
        assert not delivery.done()
        server.start()
        with pytest.raises(ConfigurationError, match=r"^stream orders: APPEND.* bytes was not"):
            delivery.result(60)
        with pytest.raises(ConfigurationError, match="smaller records"):
            producer.close()


def test_a_poll_ends_and_a_later_one_has_the_record(machines, server, caplog):
    with connect(machines.endpoint, retry_ms=math.inf) as sbp, sbp.consumer("audit") as consumer:
        assert consumer.poll(0) is None
        assert "poll without an answer streams=audit" in caplog.text
        server.start()
        record = consumer.poll(60)
        assert record is not None
        assert record.value == b"before"
