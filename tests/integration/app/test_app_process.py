"""Producers, consumers and transactions whose process ends or forks; what can be sent elsewhere."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
from uuid import uuid4

import pytest

from sbp_core import connect
from sbp_core.errors import ConfigurationError, SbpError

HEAD = """
import asyncio, sys, threading
from sbp_core import aio, connect
from sbp_core.app import process
endpoint, stream = sys.argv[1:]
"""
SEND = "for number in range(1000): producer.send(b'%d' % number)\n"
ASYNC_SEND = SEND.replace("producer", "await producer").replace("for", "  for")


@pytest.fixture
def stream(sbp):
    name = f"s-{uuid4()}"
    sbp.create_stream(name)
    return name


def run(cluster, stream, script):
    """The exit code and standard error of a script that sends a thousand records."""
    command = [sys.executable, "-W", "default::ResourceWarning", "-c", HEAD + script]
    done = subprocess.run(
        [*command, cluster.endpoint, stream], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("end", "exit_code"),
    [("", 0), ("sys.exit(3)", 3), ("raise ValueError", 1)],
)
@pytest.mark.parametrize("given", ["", ", id='loader'"])
def test_a_producer_that_is_left_open_sends_its_records(
    sbp, cluster, stream, given, end, exit_code
):
    start = f"producer = connect(endpoint).producer(stream{given})\n"
    code, errors = run(cluster, stream, start + SEND + end)
    assert len(list(sbp.consumer(stream))) == 1000
    assert "ResourceWarning" in errors
    assert "records lost" not in errors
    assert code == exit_code


def test_records_that_cannot_be_sent_at_the_end_are_counted(sbp, cluster, stream):
    start = "producer = connect(endpoint).producer(stream, linger_ms=60_000)\n"
    stop = "producer.on_loop._callers.finish = lambda gate, seconds: None\n"
    _, errors = run(cluster, stream, start + SEND + stop)
    assert f"records lost count=1000 stream={stream}" in errors


def test_records_of_a_loop_that_ends_are_counted(sbp, cluster, stream):
    main = "async def main():\n  producer = aio.connect(endpoint).producer(stream)\n" + ASYNC_SEND
    code, errors = run(cluster, stream, main + "asyncio.run(main())")
    assert f"records lost count=1000 stream={stream}" in errors
    assert "ResourceWarning" in errors
    assert code == 0


def test_a_thread_goes_on_after_the_main_thread_has_ended(sbp, cluster, stream):
    """Its executors are closed by then, which would look up the name of a server."""
    script = (
        "def work():\n"
        "  threading.main_thread().join()\n"
        "  named = endpoint.replace('127.0.0.1', 'localhost')\n"
        "  with connect(named).producer(stream) as producer:\n"
        "    for number in range(1000): producer.send(b'%d' % number)\n"
        "threading.Thread(target=work).start()\n"
    )
    assert run(cluster, stream, script) == (0, "")
    assert len(list(sbp.consumer(stream))) == 1000


def in_child(act):
    """The error that a call in a child of a fork raises, as text; None if it returns."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            act()
            found = b""
        except BaseException as error:
            found = f"{type(error).__name__}: {error}".encode()
        os.write(write, found)
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read, "rb") as pipe:
        return pipe.read().decode() or None


def test_the_child_of_a_fork_is_refused_and_the_parent_goes_on(sbp, stream):
    producer = sbp.producer(stream)
    for number in range(3):
        producer.send(b"%d" % number).result()
    waiting = sbp.producer(stream, linger_ms=60_000)
    delivery = waiting.send(b"3")
    records = iter(sbp.consumer(stream))
    consumer = sbp.consumer(stream, group=stream)
    assert (next(records).value, next(iter(consumer)).value) == (b"0", b"0")
    transaction = sbp.transaction(stream)
    transaction.send(stream, b"4")
    for act in (
        lambda: producer.send(b"x"),
        producer.flush,
        delivery.result,
        lambda: next(records),
        consumer.commit,
        lambda: transaction.send(stream, b"x"),
        transaction.commit,
    ):
        error = in_child(act)
        assert "is a child of it: make one here" in error
        assert "Async" not in error
    assert in_child(producer.close) is None
    assert in_child(consumer.close) is None
    assert in_child(sbp.streams) is None
    assert in_child(lambda: sbp.producer(stream).send(b"child").result()) is None
    made_before = sbp.producer(stream)

    def use_in_child():
        made_before.send(b"late child").result(60)
        made_before.close()

    assert in_child(use_in_child) is None
    transaction.commit()
    waiting.close()
    values = [each.value for each in sbp.consumer(stream)]
    assert sorted(values) == [b"0", b"1", b"2", b"3", b"4", b"child", b"late child"]
    consumer.commit()
    assert sbp.consumer(stream, group=stream).lag() == {stream: 6}


def test_the_child_of_a_fork_ends_without_a_word(cluster, stream):
    script = (
        "import gc, os\n"
        "connection = connect(endpoint)\n"
        "producer = connection.producer(stream)\n"
        "producer.send(b'x').result()\n"
        "consumer = connection.consumer(stream, group='g', shared=True, follow=True)\n"
        "assert consumer.poll(60)\n"
        "if os.fork():\n"
        "  assert os.wait()[1] == 0\n"
        "  connection.close()\n"
        "gc.collect()\n"
    )
    assert run(cluster, stream, script) == (0, "")


def test_what_cannot_be_sent_to_another_process_says_so(sbp, stream):
    with sbp.producer(stream) as producer:
        producer.send(b"v", headers={"h": b"1"}).result()
    (record,) = sbp.consumer(stream)
    assert pickle.loads(pickle.dumps(record)) == record
    for each in (sbp, sbp.producer(stream), sbp.consumer(stream), sbp.transaction(stream)):
        with pytest.raises(TypeError, match="send the endpoint"):
            pickle.dumps(each)


def answer(producer, queue):
    try:
        queue.put(producer.send(b"x").result())
    except SbpError as error:
        queue.put(error)


def test_a_worker_of_multiprocessing_is_refused(sbp, stream):
    context = multiprocessing.get_context("fork")
    with sbp.producer(stream) as producer:
        producer.send(b"x").result()
        queue = context.Queue()
        worker = context.Process(target=answer, args=(producer, queue))
        worker.start()
        assert isinstance(queue.get(timeout=60), ConfigurationError)
        worker.join()


def send_and_end(endpoint, stream, count):
    producer = connect(endpoint).producer(stream, linger_ms=60_000)
    for number in range(count):
        producer.send(b"%d" % number)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_of_multiprocessing_sends_its_records_when_it_ends(cluster, sbp, stream, method):
    with sbp.producer(stream) as producer:  # the child has to register its own end
        producer.send(b"x").result()
    context = multiprocessing.get_context(method)
    worker = context.Process(target=send_and_end, args=(cluster.endpoint, stream, 100))
    worker.start()
    worker.join()
    assert (worker.exitcode, len(list(sbp.consumer(stream)))) == (0, 101)


def test_a_consumer_of_a_group_may_be_made_in_the_child(cluster, sbp, stream):
    def read():
        with connect(cluster.endpoint) as own:
            assert [each.value for each in own.consumer(stream)] == [b"0"]

    with sbp.producer(stream) as producer:
        producer.send(b"0").result()
    assert in_child(read) is None
