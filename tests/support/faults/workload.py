""""""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from sbp_core.client import AppendItem, Client, FetchItem, RetryPolicy, StreamSpec, Writer
from sbp_core.errors import OffsetOutOfRangeError, Outcome, SbpError
from tests.support.client import BlockingDriver, ClientThreads
from tests.support.cluster import rows_batch, values_of

End = Literal["ok", "fail", "unknown"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation; `answer` is what came with its end."""

    number: int
    process: str
    action: str
    request: dict[str, Any]
    end: End = "unknown"
    answer: dict[str, Any] = field(default_factory=dict)


class History:
    """A journal that any number of threads write. With a path it is kept in a file too."""

    def __init__(self, path: Path | None = None) -> None:
        self._lines: list[dict[str, Any]] = []
        self._file = path.open("w", encoding="utf-8") if path else None
        self._began_at = time.monotonic()
        self._number = 0
        self._lock = threading.Lock()

    def invoke(self, process: str, action: str, **request: Any) -> int:
        """Note that an operation begins; return its number."""
        with self._lock:
            self._number += 1
            number = self._number
            self._write("invoke", number, {"process": process, "action": action, **request})
        return number

    def ok(self, number: int, **answer: Any) -> None:
        self._end("ok", number, answer)

    def fail(self, number: int, error: object) -> None:
        self._end("fail", number, {"error": str(error)})

    def unknown(self, number: int, error: object) -> None:
        self._end("unknown", number, {"error": str(error)})

    def fault(self, what: str) -> None:
        """Note what is being done to the servers."""
        self.ok(self.invoke("nemesis", "fault", what=what))

    def operations(self) -> list[Operation]:
        """All operations so far, in the order in which they began."""
        with self._lock:
            return parse_lines(self._lines)

    def _end(self, kind: End, number: int, answer: dict[str, Any]) -> None:
        with self._lock:
            self._write(kind, number, answer)

    def _write(self, kind: str, number: int, content: dict[str, Any]) -> None:
        time_ms = round(1000 * (time.monotonic() - self._began_at))
        line = {"type": kind, "number": number, "time_ms": time_ms, **content}
        self._lines.append(line)
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


def load_history(path: Path) -> list[Operation]:
    """The operations of a history file."""
    return parse_lines(map(json.loads, path.read_text(encoding="utf-8").splitlines()))


def parse_lines(lines: Iterable[dict[str, Any]]) -> list[Operation]:
    """Put the two lines of each operation together."""
    operations: dict[int, Operation] = {}
    for line in lines:
        content = {key: value for key, value in line.items() if key not in {"type", "time_ms"}}
        number = content.pop("number")
        if line["type"] == "invoke":
            process, action = content.pop("process"), content.pop("action")
            operations[number] = Operation(number, process, action, content)
        else:
            begun = operations[number]
            operations[number] = Operation(
                number, begun.process, begun.action, begun.request, line["type"], content
            )
    return list(operations.values())


FETCH_BYTES = 1 << 20
FAILURE_PAUSE_SECONDS = 0.05
"""Before the next operation of a client whose last one failed: servers need time to come back."""
CHANGE_PAUSE_SECONDS = 0.2
AUDIT_BUDGET_MS = 60_000
LISTINGS_MAX = 5


def encode_record(name: str, size: int) -> bytes:
    """A record of that name, padded to about `size` bytes that show whether they are intact."""
    return name.encode() + b"|" + zlib.crc32(name.encode()).to_bytes(4, "big") * (size // 4)


def decode_record(value: bytes) -> str:
    """The name of a record, or one that was never written if it is not intact."""
    name = value.partition(b"|")[0].decode(errors="replace")
    return name if value == encode_record(name, len(value) - len(name) - 1) else f"damaged:{name}"


def new_streams(endpoint: str, count: int = 2, *, replica_count: int = 1) -> list[int]:
    """Create streams; return their ids."""
    with Client(endpoint) as client:
        created = client.create_streams([StreamSpec(None, replica_count)] * count)
    return [stream.stream_id for stream in created]


def new_short_stream(endpoint: str, history: History, kept_bytes: int) -> int:
    """Create a stream of which only so much is kept, and journal that; return its id."""
    with Client(endpoint) as client:
        (created,) = client.create_streams([StreamSpec(None, retention_bytes=kept_bytes)])
    number = history.invoke("auditor", "keep", stream=created.stream_id, bytes=kept_bytes)
    history.ok(number)
    return created.stream_id


class Workload(ClientThreads):
    """Writers, a reader, and with `changes` one who trims and seals. Starts and stops once.

    Writers do not try again what failed, so that each outcome is that of a single call;
    `retry_unknown` lets them, which duplicates. The first `numbering` of them number their batches
    and try again until they are appended.
    """

    def __init__(
        self,
        endpoint: str,
        history: History,
        rng: random.Random,
        stream_ids: Sequence[int],
        *,
        writers: int = 3,
        numbering: int = 0,
        timeout_ms: int = 5_000,
        changes: bool = True,
        retry_unknown: bool = False,
        record_bytes_max: int = 2_000,
    ) -> None:
        super().__init__(writers)
        self._endpoint = endpoint
        self._history = history
        self._stream_ids = stream_ids
        self._timeout_ms = timeout_ms
        self._retry_unknown = retry_unknown
        self._record_bytes_max = record_bytes_max
        self._numbering = [Writer() for _ in range(numbering)]
        """Writers of this run: an id that was used before is not to be used again."""
        self._positions = dict.fromkeys(stream_ids, 0)
        roles = [
            partial(self._write_numbered if index < numbering else self._write, index)
            for index in range(writers)
        ]
        roles += [self._read, *([self._change] if changes else [])]
        self.threads = [
            threading.Thread(
                target=self._run,
                args=(role, random.Random(rng.random())),
            )
            for number, role in enumerate(roles)
        ]

    # Actions of the threads.

    def _run(
        self, role: Callable[[BlockingDriver, random.Random], None], rng: random.Random
    ) -> None:
        retry = RetryPolicy() if self._retry_unknown else RetryPolicy(budget_ms=0)
        driver = BlockingDriver(self._endpoint, timeout_ms=self._timeout_ms, retry=retry)
        try:
            while not self.stopping.is_set():
                role(driver, rng)
        except BaseException as error:
            self.failures.append(error)
            raise
        finally:
            driver.close()

    def _write(self, index: int, driver: BlockingDriver, rng: random.Random) -> None:
        stream_id = rng.choice(self._stream_ids)
        batch = f"{index}-{rng.getrandbits(48):012x}"
        names = [f"{batch}/{row}" for row in range(rng.randint(1, 5))]
        values = [encode_record(name, rng.randrange(self._record_bytes_max)) for name in names]
        item = AppendItem(stream_id, rows_batch(values, stream_id))
        outcomes = self._attempt(
            lambda: driver.do("append", [item], retry_unknown=self._retry_unknown),
            lambda outcomes: {"base_offset": outcomes[0].base_offset},
            *(f"writer-{index}", "append"),
            stream=stream_id,
            records=names,
        )
        self.acknowledged[index] += outcomes is not None

    def _write_numbered(self, index: int, driver: BlockingDriver, rng: random.Random) -> None:
        """Append some batches in one call, again and again until they are acknowledged."""
        stream_id = rng.choice(self._stream_ids)
        names = [
            [f"{index}-{rng.getrandbits(48):012x}/{row}" for row in range(rng.randint(1, 3))]
            for _ in range(rng.randint(1, 3))
        ]
        items = [
            AppendItem(
                stream_id,
                rows_batch(
                    [encode_record(name, rng.randrange(self._record_bytes_max)) for name in each],
                    stream_id,
                ),
            )
            for each in names
        ]
        numbers = [
            self._history.invoke(f"writer-{index}", "append", stream=stream_id, records=each)
            for each in names
        ]
        while not self.stopping.is_set():
            try:
                outcomes = driver.do("append", items, writer=self._numbering[index])
            except SbpError as error:
                if not error.retriable:
                    raise
                self.stopping.wait(FAILURE_PAUSE_SECONDS)
                continue
            for number, outcome in zip(numbers, outcomes, strict=True):
                self._history.ok(number, base_offset=outcome.base_offset)
            self.acknowledged[index] += 1
            return

    def _read(self, driver: BlockingDriver, rng: random.Random) -> None:
        stream_id = rng.choice(self._stream_ids)
        position = self._positions[stream_id]
        outcome = self._attempt(
            lambda: fetch_once(driver, stream_id, position),
            lambda outcome: {"records": named(outcome.payload, position)},
            *("reader", "read"),
            stream=stream_id,
            offset=position,
        )
        if outcome is not None:
            self._positions[stream_id] = outcome.next_offset

    def _change(self, driver: BlockingDriver, rng: random.Random) -> None:
        self.stopping.wait(rng.uniform(0, CHANGE_PAUSE_SECONDS))
        stream_id = rng.choice(self._stream_ids)
        if rng.random() < 0.5:
            self._attempt(
                lambda: driver.do("seal_streams", [stream_id]),
                no_answer,
                *("changer", "seal"),
                stream=stream_id,
            )
            self._attempt(
                lambda: driver.do("list_ranges", [stream_id]),
                lambda ranges: {"ranges": triples(ranges[stream_id])},
                *("changer", "ranges"),
                stream=stream_id,
            )
        else:
            offset = rng.randint(0, self._positions[stream_id] // 2)
            self._attempt(
                lambda: driver.do("trim_streams", {stream_id: offset}),
                no_answer,
                *("changer", "trim"),
                stream=stream_id,
                offset=offset,
            )

    def _attempt(
        self,
        do: Callable[[], Any],
        answer: Callable[[Any], dict[str, Any]],
        process: str,
        action: str,
        **request: Any,
    ) -> Any:
        """Do and journal one operation; return its result, None when it failed."""
        number = self._history.invoke(process, action, **request)
        try:
            result = do()
        except SbpError as error:
            is_refused = error.outcome is Outcome.NOT_APPLIED
            (self._history.fail if is_refused else self._history.unknown)(number, error)
            if isinstance(error, OffsetOutOfRangeError) and error.bounds:
                self._positions[request["stream"]] = error.bounds[0]
            self.stopping.wait(FAILURE_PAUSE_SECONDS)
            return None
        self._history.ok(number, **answer(result))
        return result


def list_streams(endpoint: str, history: History, stream_ids: Sequence[int]) -> None:
    """Journal all that the streams hold, and their ranges, when all clients have stopped."""
    driver = BlockingDriver(endpoint, retry=RetryPolicy(budget_ms=AUDIT_BUDGET_MS))
    for stream_id in stream_ids:
        number = history.invoke("auditor", "list", stream=stream_id)
        try:
            history.ok(number, **everything_kept(driver, stream_id))
        except SbpError as error:
            history.fail(number, error)
        number = history.invoke("auditor", "ranges", stream=stream_id)
        ranges = driver.do("list_ranges", [stream_id])
        history.ok(number, ranges=triples(ranges[stream_id]))
    driver.close()


def everything_kept(driver: BlockingDriver, stream_id: int) -> dict[str, Any]:
    """Return the content of a stream; retry if retention trims it during the read."""
    for _ in range(LISTINGS_MAX):
        with contextlib.suppress(OffsetOutOfRangeError):
            return everything(driver, stream_id)
    return everything(driver, stream_id)


def everything(driver: BlockingDriver, stream_id: int) -> dict[str, Any]:
    """Return the content of a stream, as the answer of a "list"."""
    (bounds,) = driver.do("stream_bounds", [stream_id])
    position = bounds.start_offset
    records: list[list[Any]] = []
    while position < bounds.next_offset:
        outcome = fetch_once(driver, stream_id, position)
        records += named(outcome.payload, position)
        assert outcome.next_offset > position, f"nothing at {position} of {bounds}"
        position = outcome.next_offset
    return {"start": bounds.start_offset, "next": bounds.next_offset, "records": records}


def fetch_once(driver: BlockingDriver, stream_id: int, position: int) -> Any:
    """The outcome of one fetch. Raises its error."""
    item = FetchItem(stream_id, position, None, FETCH_BYTES)
    (outcome,) = driver.fetch([item], max_wait_ms=20)
    if outcome.error is not None:
        raise outcome.error
    return outcome


def named(payload: memoryview, position: int) -> list[list[Any]]:
    """[offset, name] of the records from `position` on."""
    found = values_of(payload)
    return [[offset, decode_record(value)] for offset, value in found if offset >= position]


def triples(ranges: Sequence[Any]) -> list[list[Any]]:
    """[index, start, end or None] of each range."""
    return [[each.range_index, each.start_offset, each.end_offset] for each in ranges]


def no_answer(_: Any) -> dict[str, Any]:
    """Return the record of an answer without content."""
    return {}
