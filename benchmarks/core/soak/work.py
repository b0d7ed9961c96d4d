"""The work of the processes of a soak, except the queries: write, read, look."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError
from urllib.request import urlopen

from benchmarks.core.servers import batch
from benchmarks.core.soak import board
from benchmarks.core.soak.crew import Post
from benchmarks.core.soak.records import GROUP, READ, WRITERS, Received, decode, encode, new_values
from sbp_core import limits
from sbp_core.client import EARLIEST, AppendItem, Client, FetchItem, StreamSpec, Writer
from sbp_core.errors import SbpError
from sbp_core.records import split_envelopes

_APPEND_BYTES: Final = 100_000
_BEHIND_SECONDS: Final = 1.0
"""A writer catches up this much after an outage. The rest is left out: its rate is bounded."""
_FETCH_BYTES: Final = 4 * limits.MIB
_FETCH_WAIT_MS: Final = 500
_COMMIT_SECONDS: Final = 1.0
_SHORT_LIVED_NAME: Final = "short-lived"
_SHORT_LIVED_SECONDS: Final = 60.0
_SHORT_LIVED_BATCHES: Final = 16
"""Of 1 MiB each."""
_LOOK_SECONDS: Final = 2.0
_PAGE_TIMEOUT_SECONDS: Final = 10.0


def write(post: Post, number: int, bytes_per_s: int) -> None:
    """Append numbered records at a rate, a group of them once the last one is acknowledged."""
    writer, first, due_at = Writer(), 0, time.monotonic()
    with Client(post.endpoint) as client:
        while post.goes_on(due_at - time.monotonic()):
            values = new_values(_APPEND_BYTES)
            items = [
                AppendItem(each, encode(name, each, number, first, values))
                for name in WRITERS[number]
                for each in (post.stream_ids[name],)
            ]
            while not _is_appended(client, items, writer):
                post.board.add(board.repeats(number))
            first += len(values)
            size_bytes = sum(map(len, values)) * len(items)
            post.board.add(board.acknowledged(number), len(values))
            post.board.add(board.acknowledged_bytes(number), size_bytes)
            due_at = max(due_at, time.monotonic() - _BEHIND_SECONDS) + size_bytes / bytes_per_s


def _is_appended(client: Client, items: Sequence[AppendItem], writer: Writer) -> bool:
    """Append; return False after an error that allows the same call again. Raises others."""
    try:
        client.append(items, writer=writer)
    except SbpError as error:
        if not error.retriable:
            raise
        return False
    return True


def read(post: Post) -> None:
    """Read all streams as their records come, count them, and commit cursors."""
    names = {post.stream_ids[name]: name for name, _ in READ}
    received = {(name, number): Received() for name, number in READ}
    offsets = dict.fromkeys(names, EARLIEST)
    commit_at = time.monotonic()
    with Client(post.endpoint) as client:
        while post.goes_on():
            items = [
                FetchItem(each, offset, None, _FETCH_BYTES) for each, offset in offsets.items()
            ]
            for outcome in client.fetch(items, max_wait_ms=_FETCH_WAIT_MS):
                if outcome.error is not None and not outcome.error.retriable:
                    raise outcome.error
                name = names[outcome.stream_id]
                for envelope in split_envelopes(outcome.payload):
                    for writer, number in decode(envelope):
                        is_new = received[name, writer].add(number)
                        count = board.read if is_new else board.doubled
                        post.board.add(count(name, writer))
                if len(outcome.payload):
                    offsets[outcome.stream_id] = outcome.next_offset
            if time.monotonic() >= commit_at:
                known = {each: offset for each, offset in offsets.items() if offset >= 0}
                client.commit_cursors(GROUP, known)
                commit_at = time.monotonic() + _COMMIT_SECONDS


def make_short_lived(post: Post) -> None:
    """Create a stream every minute, fill it, and delete it."""
    with Client(post.endpoint) as client:
        while post.goes_on(_SHORT_LIVED_SECONDS):
            try:
                _make_short_lived(client)
            except SbpError as error:
                if not error.retriable:
                    raise
            else:
                post.board.add(board.SHORT_LIVED)


def _make_short_lived(client: Client) -> None:
    left = client.find_streams([_SHORT_LIVED_NAME])  # of a time that a restart interrupted
    client.delete_streams([each.stream_id for each in left])
    (info,) = client.create_streams([StreamSpec(_SHORT_LIVED_NAME, replica_count=3)])
    data = batch(limits.MIB - limits.KIB)
    items = [AppendItem(info.stream_id, data)] * _SHORT_LIVED_BATCHES
    client.append(items, writer=Writer())
    client.delete_streams([info.stream_id])


def look(post: Post, urls: Sequence[str]) -> None:
    """Load pages again and again, as a browser that has them open; count those that fail."""
    while post.goes_on(_LOOK_SECONDS):
        for url in urls:
            try:
                with urlopen(url, timeout=_PAGE_TIMEOUT_SECONDS) as answer:
                    answer.read()
            except HTTPError as error:
                post.board.add(board.FAILED_PAGES)
                print(f"{url}: {error.code} {error.reason}", file=sys.stderr, flush=True)
                error.close()
            except (OSError, HTTPException):  # it is restarted
                post.board.add(board.FAILED_PAGES)
            else:
                post.board.add(board.PAGES)
