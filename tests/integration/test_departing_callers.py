"""Callers that leave while the placement driver asks a range server for them cost it nothing."""

from __future__ import annotations

import random
import socket
import struct
import time
from contextlib import closing
from pathlib import Path

from sbp_core.client import Client, StreamSpec
from sbp_core.session.connection import Connection
from sbp_core.wire.headers import RangeId, SealRangesRequest, TrimmedStream, TrimStreamsRequest
from sbp_core.wire.headers import encode_header as encoded
from sbp_core.wire.opcodes import Opcode
from tests.support.clock import until
from tests.support.warm import WarmCluster

CALLERS = 300


def leave_after(endpoint: str, request: bytes, seconds: float) -> None:
    host, _, port = endpoint.rpartition(":")
    with closing(socket.create_connection((host, int(port)), 10)) as caller:
        caller.sendall(request)
        time.sleep(seconds)  # so that the callers leave at different moments
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_callers_that_seal_and_leave(tmp_path):
    rng = random.Random(1)
    with WarmCluster(tmp_path) as cluster, Client(cluster.endpoint) as client:
        descriptors = Path(f"/proc/{cluster.pid}/fd")
        ids = [info.stream_id for info in client.create_streams([StreamSpec(None)] * 20)]
        before = len(list(descriptors.iterdir()))
        for at in range(CALLERS):
            stream_id = ids[at % len(ids)]
            if at % len(ids) == 0:
                known = client.list_ranges(ids)
            if at % 3:
                named = RangeId(stream_id, known[stream_id][-1].range_index)
                opcode, header = Opcode.SEAL_RANGE, SealRangesRequest(5_000, (named,))
            else:
                opcode = Opcode.TRIM_STREAMS
                header = TrimStreamsRequest(5_000, (TrimmedStream(stream_id, 0),))
            _, buffers = Connection().start_call(opcode, encoded(header))
            leave_after(cluster.endpoint, b"".join(buffers), rng.random() * 0.003)
        until(lambda: len(list(descriptors.iterdir())) <= before + 2, 30)
        client.create_streams([StreamSpec("after")])
        log = cluster.log_path
    assert "was destroyed" not in log.read_text(), "a task waited without end"
