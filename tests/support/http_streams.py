"""Requests for the records of streams over HTTP, as tests make them."""

from __future__ import annotations

import io
import itertools
import json

import pyarrow as pa

from sbp_core.client import Client
from sbp_core.records import StreamSchema

ARROW = "application/vnd.apache.arrow.stream"
names = (f"s{number}" for number in itertools.count())


TYPED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("tags", pa.list_(pa.string())),
    ]
)


def register(cluster, path, schema):
    with Client(cluster.endpoint) as client:
        (info,) = client.describe_streams([path.rpartition("/")[2]])
        client.evolve_schema(info.stream_id, StreamSchema.of(schema), may_change=True)


def post(http, path, content, kind="application/x-ndjson", **headers):
    answer = http.post(f"{path}/records", content=content, headers={"Content-Type": kind} | headers)
    return answer.status_code, answer.json()


def lines(*values):
    return "".join(json.dumps(each) + "\n" for each in values)


def read(http, path, **parameters):
    """Return the records as they are in the lines."""
    answer = http.get(f"{path}/records", params=parameters)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.content.split(b"\n")[:-1]]


def values(http, path, **parameters):
    return [each["value"] for each in read(http, path, **parameters)]


def problem(answer, status, name):
    """Check that an answer is a problem; return it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert (found["status"], found["type"]) == (status, f"urn:sbp:problem:{name}")
    assert found["outcome"] == "not applied"
    return found


def arrow(batch):
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def read_arrow(http, path, **parameters):
    answer = http.get(f"{path}/records", params=parameters, headers={"Accept": ARROW})
    assert answer.status_code == 200, answer.text
    return pa.ipc.open_stream(answer.content).read_all(), answer.headers
