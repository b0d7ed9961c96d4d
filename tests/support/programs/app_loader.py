"""A process that sends the numbers before END, each once: `app_loader ENDPOINT STREAM END`."""

from __future__ import annotations

import sys
from itertools import count, islice

from sbp_core import connect

endpoint, stream, end = sys.argv[1], sys.argv[2], int(sys.argv[3])
small = {"batch_bytes": 2_000, "buffer_bytes": 2_000}  # so that it takes some hundred commits
with connect(endpoint) as sbp, sbp.producer(stream, id="loader", **small) as producer:
    for number in islice(count(), producer.position, end):
        producer.send(b"%d" % number)
