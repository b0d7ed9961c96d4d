"""Who waits for which stream: long polls are woken by the commit that brings their data."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class StreamWaiters:
    """Events to set when something of a stream becomes visible."""

    def __init__(self) -> None:
        self._events: dict[int, set[asyncio.Event]] = {}
        self._all: set[asyncio.Event] = set()
        self._is_closing = False

    @property
    def is_closing(self) -> bool:
        """Whether the server drains: nobody should wait any longer."""
        return self._is_closing

    @contextmanager
    def watch(self, stream_ids: Iterable[int]) -> Iterator[asyncio.Event]:
        """Give an event that is set by each `notify` of these streams, and by `close`."""
        event = asyncio.Event()
        watched = set(stream_ids)
        self._all.add(event)
        for stream_id in watched:
            self._events.setdefault(stream_id, set()).add(event)
        try:
            yield event
        finally:
            self._all.discard(event)
            for stream_id in watched:
                events = self._events[stream_id]
                events.discard(event)
                if not events:
                    del self._events[stream_id]

    def notify(self, stream_id: int) -> None:
        """Wake those that wait for the stream."""
        for event in self._events.get(stream_id, ()):
            event.set()

    def close(self) -> None:
        """Wake everyone: what they have is what they get."""
        self._is_closing = True
        for event in self._all:
            event.set()
