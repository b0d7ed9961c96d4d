"""Consumers that share the streams of a group."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import pytest

from sbp_core import connect
from sbp_core.client import AsyncClient
from sbp_core.errors import ConfigurationError, MemberUnknownError
from tests.support.clock import until
from tests.support.warm import WarmCluster

STREAMS = [f"part-{index}" for index in range(4)]
SESSION_MS = 4_000
SHARING = {"group": "readers", "shared": True, "session_timeout_ms": SESSION_MS}
SHORT_SESSION_MS = 1_000
"""Where it does no harm that a busy machine lets a session end too soon."""


@pytest.fixture
def sbp(tmp_path):
    with WarmCluster(tmp_path / "data") as cluster, connect(cluster.endpoint) as connection:
        for each in STREAMS:
            connection.create_stream(each)
        yield connection


class Reader:
    """A thread with a consumer of its own, which notes what it reads until it is stopped."""

    def __init__(self, sbp) -> None:
        self.found = []
        self._sbp = sbp
        self._is_stopping = False
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        consumer = self._sbp.consumer("part-*", follow=True, **SHARING)
        with consumer:
            for record in consumer:
                self.found.append((record.stream, record.offset))
                if self._is_stopping:
                    consumer.commit()
                    return

    @property
    def streams(self):
        return {stream for stream, _ in self.found}

    def stop(self, write):
        """Let it leave, with the next record that it gets."""
        self._is_stopping = True
        until(lambda: write() or not self._thread.is_alive())
        self._thread.join()


class Writing:
    """Sends one record to each stream at a time."""

    def __init__(self, sbp) -> None:
        self.counts = Counter()
        self._producers = {each: sbp.producer(each, linger_ms=0) for each in STREAMS}

    def __call__(self):
        for stream, producer in self._producers.items():
            producer.send(b"").result()
            self.counts[stream] += 1

    @property
    def sent(self):
        return {
            (stream, offset) for stream, count in self.counts.items() for offset in range(count)
        }


def test_members_divide_the_streams_and_take_over_those_of_one_that_leaves(sbp):
    write = Writing(sbp)
    first = Reader(sbp)
    until(lambda: write() or first.streams == set(STREAMS))
    second = Reader(sbp)
    until(lambda: write() or len(second.streams) == 2)
    first.stop(write)
    until(lambda: write() or second.streams == set(STREAMS))
    until(lambda: set(first.found) | set(second.found) == write.sent)
    second.stop(write)
    counts = Counter(first.found + second.found)
    assert set(counts.values()) == {1}, "each record is read by one member, once"


def test_a_member_that_is_expelled_joins_again_and_misses_nothing(sbp):
    write, found = Writing(sbp), set()
    sharing = SHARING | {"session_timeout_ms": SHORT_SESSION_MS}
    with sbp.consumer("part-*", follow=True, **sharing) as consumer:
        records = iter(consumer)

        def read():
            write()
            record = next(records)
            found.add((record.stream, record.offset))

        read()
        (info,) = sbp.client.describe_group("readers").members
        sbp.client.leave_group("readers", info.member_id)
        until(lambda: read() or is_other(sbp.client.describe_group("readers").members, info))
        sent = write.sent
        until(lambda: read() or found >= sent)
    assert sbp.client.describe_group("readers").members == ()


def test_the_commit_of_a_member_that_is_expelled_raises(sbp):
    Writing(sbp)()
    sharing = SHARING | {"commit_interval_ms": None}
    with sbp.consumer("part-*", follow=True, **sharing) as consumer:
        consumer.getone()
        (info,) = sbp.client.describe_group("readers").members
        sbp.client.leave_group("readers", info.member_id)
        for _ in range(2):
            with pytest.raises(MemberUnknownError):
                consumer.commit()
    assert not any(each.next_offset for each in sbp.client.describe_cursors("readers"))


def work_for(seconds):
    """Take some seconds, as a slow handler does."""
    until_s = time.monotonic() + seconds
    until(lambda: time.monotonic() > until_s)


def test_a_member_whose_handler_is_slow_keeps_its_streams(sbp):
    write = Writing(sbp)
    write()
    sharing = SHARING | {"session_timeout_ms": SHORT_SESSION_MS}
    with sbp.consumer("part-*", follow=True, **sharing) as consumer:
        found = []
        for record in consumer:
            found.append((record.stream, record.offset))
            if len(found) == 2:
                break
            work_for(2 * SHORT_SESSION_MS / 1000)
        consumer.commit()
    assert len(set(found)) == 2


def test_a_handler_that_takes_too_long_loses_its_streams_and_is_told_why(sbp, caplog):
    write = Writing(sbp)
    write()
    sharing = SHARING | {"session_timeout_ms": SHORT_SESSION_MS, "max_poll_interval_ms": 500}
    with sbp.consumer("part-*", follow=True, commit_interval_ms=None, **sharing) as consumer:
        first = consumer.getone()
        until(lambda: sbp.client.describe_group("readers").members == ())
        with pytest.raises(MemberUnknownError, match="max_poll_interval_ms=500"):
            consumer.commit()
        again = [consumer.getone() for _ in STREAMS]
        assert first in again
        consumer.commit()
    assert "max_poll_interval_ms=500" in caplog.text


def test_a_consumer_that_is_closed_while_it_joins_leaves_no_member(sbp, monkeypatch):
    consumer = sbp.consumer("part-*", follow=True, **SHARING)
    join = AsyncClient.join_group

    async def join_and_close(client, *given, **more):
        membership = await join(client, *given, **more)
        await asyncio.to_thread(consumer.close)
        return membership

    monkeypatch.setattr(AsyncClient, "join_group", join_and_close)
    assert consumer.poll(0) is None
    assert sbp.client.describe_group("readers").members == ()


def is_other(members, info):
    return bool(members) and members[0].member_id != info.member_id


@pytest.mark.parametrize("wrong", [{"group": "g"}, {"follow": True}])
def test_sharing_needs_a_group_and_goes_on_for_ever(sbp, wrong):
    with pytest.raises(ConfigurationError, match="shared=True needs"):
        sbp.consumer("part-0", shared=True, **wrong)


def test_a_shared_consumer_is_a_member(sbp):
    write = Writing(sbp)
    write()
    with sbp.consumer("part-*", group="g", shared=True, follow=True) as consumer:
        assert consumer.positions() == dict.fromkeys(STREAMS, 0)
        next(iter(consumer))
        assert len(sbp.client.describe_group("g").members) == 1
