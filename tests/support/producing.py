"""A producer that appends numbers all the time, whatever dies, while a test does other things."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from spark_streams import append_values, numbered

from sbp_core.client import Client, Writer
from sbp_core.errors import SbpError


@contextmanager
def producing(
    endpoint: str,
    rng: random.Random,
    streams: Sequence[str],
    *,
    sealed: Sequence[str],
    seal_share: float,
) -> Iterator[None]:
    """Append each number once, to one of the `streams`; seal one of `sealed` now and then."""
    is_over = threading.Event()
    failures: list[BaseException] = []

    def produce() -> None:
        number = 0
        writer = Writer()
        with Client(endpoint) as client:
            while not is_over.wait(rng.uniform(0, 0.1)):
                values = numbered(number, number + rng.randint(1, 40))
                append_values(client, rng.choice(streams), values, writer=writer)
                number += len(values)
                if rng.random() < seal_share:
                    (info,) = client.describe_streams([rng.choice(sealed)])
                    with suppress(SbpError):  # servers may be dead: then it is not sealed now
                        client.seal_streams([info.stream_id])

    def produce_or_tell() -> None:
        try:
            produce()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=produce_or_tell)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    assert failures == []
