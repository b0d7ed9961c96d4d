"""A sync that never ends: appends wait, nothing else does, and memory does not grow with them."""

import re
import socket
import threading
from pathlib import Path

from sbp_core import limits
from sbp_core.client import AppendItem, RetryPolicy, parse_endpoint
from sbp_core.wire.frame import encode_frame
from sbp_core.wire.headers import AppendInfo, AppendRequest, StreamRange, encode_header
from sbp_core.wire.opcodes import Opcode
from tests.support.client import BlockingDriver
from tests.support.cluster import rows_batch
from tests.support.faults.cluster import FaultCluster
from tests.support.faults.workload import fetch_once, new_streams

HOUR_MS = 3_600_000
CONNECTIONS = 4
BATCH_BYTES = limits.MIB
OFFERED_BYTES = 3 * limits.CONNECTION_IN_FLIGHT_BYTES_MAX
OVERHEAD_BYTES = 64 * limits.MIB
STALL_SECONDS = 2.0


def test_a_sync_that_never_ends(tmp_path):
    with FaultCluster(tmp_path) as cluster:
        (stream_id,) = new_streams(cluster.endpoint, 1)
        driver = BlockingDriver(cluster.endpoint)
        driver.do("append", [AppendItem(stream_id, rows_batch([b"before"], stream_id))])
        driver.close()
        cluster.stop()
        cluster.start_armed(f"log.before_sync=sleep({HOUR_MS}):1+")
        before_bytes = peak_bytes(cluster.pid)
        floods = [Flood(cluster.range_servers[0], stream_id) for _ in range(CONNECTIONS)]
        for flood in floods:
            flood.join()
        driver = BlockingDriver(cluster.endpoint, retry=RetryPolicy(budget_ms=0))
        driver.do("ping")
        assert len(fetch_once(driver, stream_id, 0).payload) > 0
        driver.close()
        grown_bytes = peak_bytes(cluster.pid) - before_bytes
        print(
            f"{sum(flood.sent_bytes for flood in floods)} bytes accepted, {grown_bytes} more held"
        )
        assert cluster.fired_count == 1
        assert all(0 < flood.sent_bytes < OFFERED_BYTES for flood in floods)
        most = CONNECTIONS * limits.CONNECTION_IN_FLIGHT_BYTES_MAX + OVERHEAD_BYTES
        assert grown_bytes < most < CONNECTIONS * OFFERED_BYTES
        cluster.kill()
        for flood in floods:
            flood.close()


class Flood(threading.Thread):
    """Appends without waiting for answers, until no more is taken or all that is offered."""

    def __init__(self, endpoint, stream_id):
        super().__init__()
        self.sent_bytes = 0
        self._socket = socket.create_connection(parse_endpoint(endpoint))
        self._socket.settimeout(STALL_SECONDS)
        batch = rows_batch([bytes(BATCH_BYTES)], stream_id)
        info = AppendInfo(StreamRange(stream_id), 0, len(batch), stream_id)
        self._append = encode_header(AppendRequest(0, (info,))), batch
        self.start()

    def run(self):
        header, batch = self._append
        for number in range(1, OFFERED_BYTES // BATCH_BYTES):
            frame = b"".join(encode_frame(Opcode.APPEND, 0, number, header, [batch]))
            try:
                self._socket.sendall(frame)
            except TimeoutError:
                return
            self.sent_bytes += len(frame)

    def close(self):
        self._socket.close()


def peak_bytes(pid):
    """The most memory that the process has held so far."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])
