"""A member of a group that reads until it is killed: `group_member JSON`.

It follows the rules for members in docs/reference/protocol.md, on one thread: so everything that it
holds and is to give up is given up when it sends the next heartbeat. Its journal has a line when it
begins to work on a stream, with the end of its session, one for each record, and one at the end:

    begin STREAM TIME DEADLINE
    record STREAM OFFSET
    end STREAM TIME

Times are in ns of the clock that the processes of a machine share.
"""

from __future__ import annotations

import json
import os
import sys
import time

from sbp_core.client import Client, FetchItem, Membership
from sbp_core.errors import MemberUnknownError, SbpError
from sbp_core.records import split_envelopes

FETCH_BYTES = 2_000
FETCH_WAIT_MS = 50


class Member:
    """One process of a group."""

    def __init__(self, client: Client, group: str, pattern: str, journal: int) -> None:
        self.client, self.group, self.pattern, self.journal = client, group, pattern, journal
        self.session_ms = 0
        self.membership: Membership | None = None
        self.deadline_ns = 0

    def live(self, session_ms: int) -> None:
        """Join, read, and join again after each expulsion."""
        self.session_ms = session_ms
        while True:
            try:
                self.beat()
                self.read()
            except MemberUnknownError:
                self.membership = None
            except SbpError:
                pass  # another member holds a stream by now, or a server is down: look again

    def beat(self) -> None:
        """Send a heartbeat; nothing is in progress between two reads."""
        sent_ns = time.monotonic_ns()
        if self.membership is None:
            membership = self.client.join_group(
                self.group, [self.pattern], session_timeout_ms=self.session_ms
            )
        else:
            held = self.membership.stream_ids
            membership = self.client.group_heartbeat(self.membership, held)
        self.membership = membership
        self.deadline_ns = sent_ns + self.session_ms * 1_000_000

    def read(self) -> None:
        """Work on the streams that are assigned, unless the session is over."""
        membership = self.membership
        assert membership is not None
        if not membership.stream_ids:
            time.sleep(FETCH_WAIT_MS / 1_000)
            return
        now_ns = time.monotonic_ns()
        if now_ns >= self.deadline_ns:
            return
        for each in membership.stream_ids:
            self.note("begin", each, now_ns, self.deadline_ns)
        try:
            self.work(membership)
        finally:
            for each in membership.stream_ids:
                self.note("end", each, time.monotonic_ns())

    def work(self, membership: Membership) -> None:
        """Process what comes next of each stream, and commit it."""
        cursors = self.client.describe_cursors(self.group, membership.stream_ids)
        starts = dict.fromkeys(membership.stream_ids, 0)
        starts |= {each.stream_id: each.next_offset for each in cursors}
        items = [FetchItem(each, start, None, FETCH_BYTES) for each, start in starts.items()]
        for outcome in self.client.fetch(items, max_wait_ms=FETCH_WAIT_MS):
            if outcome.error is not None or not outcome.payload:
                continue
            start = starts[outcome.stream_id]
            done = self.process(outcome.stream_id, start, outcome.payload)
            if done > start:
                offsets = {outcome.stream_id: done}
                self.client.commit_cursors(self.group, offsets, membership=membership)

    def process(self, stream_id: int, start: int, payload: object) -> int:
        """Process records from `start` on, while the session lasts; return where it ended."""
        offset = start
        for envelope in split_envelopes(payload):
            for offset in range(envelope.base_offset, envelope.base_offset + envelope.record_count):
                if offset < start:
                    continue
                if time.monotonic_ns() >= self.deadline_ns:
                    return offset
                self.note("record", stream_id, offset)
            offset += 1
        return offset

    def note(self, *words: object) -> None:
        """Write a line, as a whole."""
        os.write(self.journal, (" ".join(map(str, words)) + "\n").encode())


def main(endpoint: str, group: str, pattern: str, journal: str, session_ms: int) -> None:
    """Be a member until the end of the process."""
    file = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with Client(endpoint) as client:
        Member(client, group, pattern, file).live(session_ms)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
