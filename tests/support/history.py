"""Operations of clients and their outcomes: one JSON line at the start of each, one at its end.

    {"type": "invoke", "number": 7, "time_ms": 12, "process": "writer-0", "action": "append", ...}
    {"type": "ok", "number": 7, "time_ms": 15, "base_offset": 4}

`ok` is an acknowledgement, `fail` an error that says that nothing was done, `unknown` any other
error. An operation whose end is missing is unknown too. Other keys are the action's own:

    append  stream, records             ok: base_offset
    read    stream, offset              ok: records, as pairs [offset, record]
    list    stream                      ok: start, next, records as above: all there is
    ranges  stream                      ok: ranges, as triples [index, start, end or null]
    trim    stream, offset
    seal    stream
    commit  batch, parts, as pairs [stream, records]
    keep    stream, bytes               only so much of it is kept, the newest records at least
    fault   what happened to the servers, in words

A record is known by a name that no other record has.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

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
