"""A process that notes each number that it reads: `app_reader ENDPOINT STREAM END FILE`.

It reads in a group, and ends after the number before END.
"""

from __future__ import annotations

import sys

from sbp_core import connect

endpoint, stream, end, path = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
with (
    open(path, "ab", buffering=0) as notes,
    connect(endpoint) as sbp,
    sbp.consumer(stream, group="readers", follow=True, commit_interval_ms=10) as consumer,
):
    for record in consumer:
        notes.write(b"%d %s\n" % (record.offset, record.value))
        if record.offset == end - 1:
            break
