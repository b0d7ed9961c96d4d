"""HTTP under faults: killed processes, slow and greedy peers."""

import asyncio
import json
import select
import signal
import socket
import threading

import httpx
import pytest

from sbp_core import failpoints, limits
from sbp_core.client import AsyncClient, Connecting, RetryPolicy
from sbp_core.settings.web_settings import WebSettings
from sbp_core.web.callers import Callers
from sbp_core.web.records.api import records_app
from sbp_core.web.records.record_answers import TAILS_MAX, Tails
from sbp_core.web.records.requests import Bodies
from tests.support.warm import WarmCluster
from tests.support.web import TIMEOUT_SECONDS, http_client, lines, post, serving_http, values

MIB = limits.MIB
KEY = {"Idempotency-Key": "order-1"}
STREAM = "/v1/streams/orders"


@pytest.fixture
def cluster(tmp_path):
    with WarmCluster(tmp_path / "data") as served:
        yield served


@pytest.fixture
def served(tmp_path, cluster):
    with serving_http(tmp_path, cluster.endpoint) as process:
        with http_client(process) as http:
            assert http.put(STREAM).status_code == 201
        yield process


def post_once(served, content, **headers):
    """Return the status, the answer and whether it is a replay."""
    with http_client(served) as http:
        answer = http.post(
            f"{STREAM}/records",
            content=content,
            headers={"Content-Type": "application/x-ndjson"} | headers,
        )
    return answer.status_code, answer.json(), "idempotent-replay" in answer.headers


def test_a_key_is_known_after_every_process_was_killed(tmp_path, cluster, served):
    content = lines({"value": "a"}, {"value": "b"})
    status, first, is_replay = post_once(served, content, **KEY)
    assert (status, first["first_offset"], is_replay) == (200, 0, False)
    served.end(signal.SIGKILL)
    served.start()
    assert post_once(served, content, **KEY) == (200, first, True)
    cluster.kill()
    cluster.restart()
    assert post_once(served, content, **KEY) == (200, first, True)
    with serving_http(tmp_path, cluster.endpoint) as other:
        assert post_once(other, content, **KEY) == (200, first, True)
        status, found, _ = post_once(other, lines({"value": "c"}, {"value": "b"}), **KEY)
        assert (status, found["type"]) == (422, "urn:sbp:problem:key-used-before")
        status, found, _ = post_once(other, lines({"value": "a"}), **KEY)
        assert (status, found["type"]) == (422, "urn:sbp:problem:key-used-before")
        with http_client(other) as http:
            assert values(http, STREAM) == ["a", "b"]


@pytest.mark.parametrize("place", ["log.before_sync", "log.after_sync"])
def test_a_retry_after_a_crash_between_the_records_and_their_answer(tmp_path, monkeypatch, place):
    """The range server dies with the records on their way to the disk, or on it."""
    cluster = WarmCluster(tmp_path / "data")
    with cluster, serving_http(tmp_path, cluster.endpoint) as served:
        with http_client(served) as http:
            assert http.put(STREAM).status_code == 201
        cluster.stop()
        monkeypatch.setenv(failpoints.VARIABLE, f"{place}=kill")
        cluster.restart()
        monkeypatch.delenv(failpoints.VARIABLE)
        content, answers = lines({"value": "a"}), []
        posting = threading.Thread(target=lambda: answers.append(post_once(served, content, **KEY)))
        posting.start()
        cluster._process.wait(TIMEOUT_SECONDS)
        cluster.kill()
        assert f"failpoint {place}" in cluster.log_path.read_text()
        cluster.restart()
        posting.join(TIMEOUT_SECONDS)
        ((status, _, _),) = answers
        assert status in {200, 502, 503, 504}  # it was retried for long enough, or not
        status, found, _ = post_once(served, content, **KEY)
        assert (status, found["first_offset"], found["next_offset"]) == (200, 0, 1)
        with http_client(served) as http:
            assert values(http, STREAM) == ["a"]


def test_a_retry_to_a_process_that_died_before_it_answered(tmp_path, cluster, served):
    """`sbp http` is stopped while a request is under way, then killed: its caller retries."""
    content = lines({"value": "a"})
    request = raw_post(served, content.encode(), **KEY)
    request.recv(1, socket.MSG_PEEK)  # it is answered, and the caller did not read that
    served.end(signal.SIGKILL)
    request.close()
    served.start()
    status, found, is_replay = post_once(served, content, **KEY)
    assert (status, found["first_offset"], is_replay) == (200, 0, True)


def raw_post(served, content, length=None, **headers):
    """Send a request by hand; return its connection."""
    host, _, port = served.address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS)
    fields = {"Host": served.address, "Content-Type": "application/x-ndjson"} | headers
    fields["Content-Length"] = str(len(content) if length is None else length)
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    connection.sendall(f"POST {STREAM}/records HTTP/1.1\r\n{head}\r\n".encode() + content)
    return connection


def answer_of(connection):
    """Return the status, the headers and the problem that a connection gets."""
    with connection, connection.makefile("rb") as file:
        status = int(file.readline().split()[1])
        headers = {}
        while line := file.readline().strip().decode():
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        return status, headers, json.loads(file.read(int(headers["content-length"])))


def test_bodies_have_bounded_memory_and_more_of_them_are_to_be_retried(served):
    body = b" " * (16 * MIB - 1)
    held = [raw_post(served, body, 16 * MIB) for _ in range(6)]
    try:
        refused = select.select(held, [], [], TIMEOUT_SECONDS)[0]
        assert refused
        for each in refused:
            held.remove(each)
            status, headers, found = answer_of(each)
            assert (status, found["type"]) == (429, "urn:sbp:problem:too-many-bytes-in-flight")
            assert (headers["retry-after"], found["retriable"]) == ("1", True)
    finally:
        for each in held:
            each.close()
    with http_client(served) as http:  # the connections that were closed leave their room
        while post(http, STREAM, body[:MIB] + b"\n{}")[0] == 429:
            pass
    assert served.peak_bytes() < 400 * MIB


def test_answers_have_bounded_memory_while_their_reader_is_slow(served):
    with http_client(served) as http:
        for _ in range(12):
            assert post(http, STREAM, b"a" * (8 * MIB - 99), "application/octet-stream")[0] == 200
        before = served.peak_bytes()
        with http.stream("GET", f"{STREAM}/records") as answer:
            chunks = answer.iter_raw()
            assert next(chunks)
            assert http.get(STREAM).status_code == 200
            assert served.peak_bytes() - before < 80 * MIB
            assert sum(map(len, chunks)) > 11 * (8 * MIB - 99)


def test_many_bodies_at_once_are_all_answered(served):
    content = lines(*({"value": "a" * 100} for _ in range(20_000)))
    statuses = []

    def post_many():
        with http_client(served) as http:
            statuses.extend(post(http, STREAM, content)[0] for _ in range(2))

    threads = [threading.Thread(target=post_many) for _ in range(12)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(TIMEOUT_SECONDS)
    assert len(statuses) == 24
    assert set(statuses) <= {200, 429}
    assert 200 in statuses
    with http_client(served) as http:
        tail = http.get(STREAM).json()["next_offset"]
    assert tail == 20_000 * statuses.count(200)


def test_the_number_of_tails_is_bounded(served):
    head = f"Host: {served.address}\r\nAccept: text/event-stream\r\n"
    request = f"GET {STREAM}/records HTTP/1.1\r\n{head}\r\n"
    host, _, port = served.address.rpartition(":")
    held = []
    try:
        for _ in range(TAILS_MAX + 1):
            connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS)
            connection.sendall(request.encode())
            held.append(connection)
            status = connection.recv(12).split()[1]
            if status != b"200":
                break
        assert (len(held), status) == (TAILS_MAX + 1, b"429")
    finally:
        for each in held:
            each.close()
    code, _ = served.end()
    assert code == 0


def test_a_stop_ends_tails_and_leaves_no_ready_file(tmp_path, served):
    with (
        http_client(served) as http,
        http.stream("GET", f"{STREAM}/records", headers={"Accept": "text/event-stream"}) as tail,
    ):
        text = tail.iter_text()
        assert next(text).startswith("retry")
        code, errors = served.end()
        assert "".join(text) == ""
    assert (code, errors) == (0, "")
    assert not (tmp_path / "http.json").exists()


def test_a_cluster_that_is_down_is_a_problem_to_retry(cluster):
    def make(endpoint, connecting):
        return AsyncClient(endpoint, connecting=connecting, retry=RetryPolicy(budget_ms=100))

    async def ask():
        settings = WebSettings(endpoint=cluster.endpoint, connecting=Connecting(), port=0)
        callers = Callers(settings, make=make)
        app = records_app(callers, Bodies(MIB), Tails(asyncio.Event()))
        transport = httpx.ASGITransport(callers.counting(app))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            answers = [await http.put(STREAM)]
            cluster.kill()
            row = lines({"value": "a"})
            kind = {"Content-Type": "application/x-ndjson"}
            answers += [await http.post(f"{STREAM}/records", content=row, headers=kind)]
            cluster.restart()
            answers += [await http.get(STREAM)]
        await callers.close()
        return [each.status_code for each in answers]

    created, posted, found = asyncio.run(ask())
    assert (created, found) == (201, 200)
    assert posted in {503, 504}
