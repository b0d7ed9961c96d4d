"""Reading records over HTTP: positions, forms, tails, and answers that are cut off."""

import json
import threading

import httpx
import pytest

from sbp_core.client import AppendItem, Client
from tests.support.cluster import rows_batch
from tests.support.web import ARROW, http_client, post, problem, values

EVENTS = "text/event-stream"


def test_positions(http, stream):
    for value in "abcd":
        assert post(http, stream, value, "text/plain")[0] == 200
    assert values(http, stream) == list("abcd")
    assert values(http, stream, **{"from": 1, "to": 3}) == ["b", "c"]
    assert values(http, stream, **{"from": -2}) == ["c", "d"]
    assert values(http, stream, **{"from": -9, "max": 1}) == ["a"]
    assert values(http, stream, **{"from": "latest"}) == []
    assert values(http, stream, **{"from": "1970-01-01T00:00:01"}) == list("abcd")
    assert values(http, stream, **{"from": "9999-01-01"}) == []
    assert values(http, stream, to=99) == list("abcd")
    answer = http.get(f"{stream}/records", params={"from": 1, "max": 2})
    assert answer.headers["sbp-next-offset"] == "3"
    missing = http.get(f"{stream}/records", params={"from": 5})
    assert "from 0 to 4" in problem(missing, 416, "offset-out-of-range")["detail"]
    for reversed_span in (
        {"from": 3, "to": 1},
        {"from": "2025-01-31", "to": "2025-01-30"},
        {"from": -1, "to": -3},
        {"from": "latest", "to": 1},
        {"from": 1, "to": "earliest"},
        {"from": 3, "to": -4},
    ):
        problem(http.get(f"{stream}/records", params=reversed_span), 400, "bad-request")
    for wrong in ({"from": "noon"}, {"max": "-1"}, {"wait_ms": "30001"}, {"form": "1"}):
        found = http.get(f"{stream}/records", params=wrong)
        assert found.status_code == 400
    assert http.get(f"{stream}/records?max=1&max=2").status_code == 400


def test_a_request_may_wait_for_a_record(http, stream):
    found = []
    waiting = threading.Thread(
        target=lambda: found.extend(values(http, stream, **{"from": "latest", "wait_ms": 30_000}))
    )
    waiting.start()
    while waiting.is_alive():
        assert post(http, stream, "a", "text/plain")[0] == 200
        waiting.join(0.05)
    assert "a" in found
    assert values(http, stream, **{"from": "latest", "wait_ms": 1}) == []


def events(answer):
    """Yield the events of an answer as (id, value)."""
    event_id = None
    for line in answer.iter_lines():
        name, _, rest = line.partition(": ")
        if name == "id":
            event_id = int(rest)
        elif name == "data":
            yield event_id, json.loads(rest)["value"]


def test_a_tail_goes_on_behind_the_last_event(served, http, stream):
    path = f"{stream}/records"
    assert post(http, stream, "a\nb", "text/plain")[0] == 200
    with (
        http_client(served) as other,
        other.stream("GET", path, params={"from": 0}, headers={"Accept": EVENTS}) as answer,
    ):
        assert answer.headers["content-type"].startswith(EVENTS)
        found = events(answer)
        assert [next(found), next(found)] == [(0, "a"), (1, "b")]
        assert post(http, stream, "c", "text/plain")[0] == 200
        assert next(found) == (2, "c")
    resuming = {"Accept": EVENTS, "Last-Event-ID": "1"}
    with (
        http_client(served) as other,
        other.stream("GET", path, headers=resuming) as answer,
    ):
        assert next(events(answer)) == (2, "c")
    wrong = {"Accept": EVENTS, "Last-Event-ID": "x"}
    problem(http.get(path, headers=wrong), 400, "bad-request")
    told = problem(http.get(path, headers={"Last-Event-ID": "1"}), 400, "bad-request")
    assert "Last-Event-ID is only for text/event-stream" in told["detail"]
    problem(http.get(path, params={"max": 1}, headers={"Accept": EVENTS}), 400, "bad-request")


def test_a_stream_that_is_deleted_ends_its_tail_with_a_problem(served, http, stream):
    headers = {"Accept": EVENTS}
    with (
        http_client(served) as other,
        other.stream("GET", f"{stream}/records", headers=headers) as answer,
    ):
        text = answer.iter_text()
        assert next(text).startswith("retry: ")
        assert http.delete(stream).status_code == 204
        rest = "".join(text)
    assert "event: problem\ndata: " in rest
    problem(http.get(f"{stream}/records", headers=headers), 404, "not-found")


def test_accept_chooses_the_form(http, stream):
    path = f"{stream}/records"
    for accept, kind in (
        ("*/*", "application/x-ndjson"),
        ("text/html, */*;q=0.1", "application/x-ndjson"),
        (f"{ARROW}, */*", ARROW),
    ):
        assert http.get(path, headers={"Accept": accept}).headers["content-type"] == kind
    problem(http.get(path, headers={"Accept": "image/png"}), 406, "not-acceptable")


def test_answers_with_records_are_not_kept_and_head_has_their_headers(http, stream):
    assert post(http, stream, "<script>", "text/plain")[0] == 200
    path = f"{stream}/records"
    for accept in ("application/x-ndjson", ARROW, EVENTS):
        head = http.head(path, headers={"Accept": accept})
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"].startswith(accept)
        assert head.headers["cache-control"] == "no-store"
        assert head.headers["x-content-type-options"] == "nosniff"
    assert http.get(path).headers["x-content-type-options"] == "nosniff"
    assert http.head(path).headers["sbp-next-offset"] == "1"
    assert http.head(stream).headers["content-length"] == http.get(stream).headers["content-length"]
    assert http.head("/v1/streams/nothing").status_code == 404


def test_an_answer_that_is_cut_off_has_no_end(cluster, http, stream):
    assert post(http, stream, "a", "text/plain")[0] == 200
    with Client(cluster.endpoint) as client:
        (info,) = client.describe_streams([stream.rpartition("/")[2]])
        client.append([AppendItem(info.stream_id, damaged())])
    with http.stream("GET", f"{stream}/records") as answer:
        assert (answer.status_code, answer.headers["sbp-next-offset"]) == (200, "2")
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            answer.read()
    assert http.get(f"{stream}/records", params={"from": 1}).status_code == 502
    assert values(http, stream, max=1) == ["a"]


def damaged():
    """Return a batch that servers accept, and no reader: its key is not within its bytes."""
    batch = bytearray(rows_batch([b"value"]))
    at = batch.index(b"value")
    offsets = batch.rindex((5).to_bytes(4, "little"), 0, at)
    batch[offsets : offsets + 4] = (6_000_000).to_bytes(4, "little")
    return bytes(batch)
