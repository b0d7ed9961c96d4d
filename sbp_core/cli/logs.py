"""The log of a process that serves: events, a line each, as text or JSON.

The message of a log call is a template, `EVENT key=%s key=%d: DETAIL`. EVENT is the same each time,
so programs can look for it. The keys, and what follows the colon, are optional. Tests check that
all messages of this package have this form. The form "text" shows an event as it is written there,
"json" has an object per line:

    time     RFC 3339, in UTC
    level    debug, info, warning, error or critical
    event    EVENT; for other packages the name of their logger
    server   the command, and its data folder
    key ...  the values of the keys
    detail   DETAIL, if any
    trace    of an exception, if any
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from sbp_core.cli.output import one_line, to_json
from sbp_core.errors import ConfigurationError
from sbp_core.server.audit import EVENTS
from sbp_core.server.line_file import LineFile
from sbp_core.server.line_file import __name__ as line_file_logger
from sbp_core.wording import escape

RESERVED_KEYS: Final = ("time", "level", "event", "server", "detail", "trace")

EVENTS_MAX: Final = 20
"""Events of one kind that are logged in WINDOW_SECONDS; the others are counted."""
WINDOW_SECONDS: Final = 600.0

_LOG: Final = logging.getLogger(__name__)
_FIELD: Final = r" (\w+)=%[#0.\d]*[a-z]"
_TEMPLATE: Final = re.compile(rf"([^%=:]*[^%=: ])((?:{_FIELD})*)(?:: (.*))?")


@dataclass(frozen=True, slots=True)
class Template:
    """The parts of the message of a log call."""

    event: str
    keys: tuple[str, ...]
    detail: str | None


@lru_cache(maxsize=1024)
def maybe_template(message: str) -> Template | None:
    """Return the parts of a message, None if it has not the form of the log."""
    found = _TEMPLATE.fullmatch(message)
    if found is None:
        return None
    keys = tuple(re.findall(_FIELD, found[2]))
    return Template(found[1], keys, found[4])


class TextLines(logging.Formatter):
    """Each event in one line, whatever the text of a peer in it; behind it the trace, if any."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(  # noqa: N802 - overrides
        self, record: logging.LogRecord, datefmt: str | None = None
    ) -> str:
        """Return the time as JSON has it, too."""
        return _time_of(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overrides
        """Return the line."""
        return one_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - overrides
        """Return the lines of a trace."""
        return escape(super().formatException(ei), spared="\n")


class JsonLines(logging.Formatter):
    """Each event as an object of JSON in one line; `server` says which process it is of."""

    def __init__(self, server: str) -> None:
        super().__init__()
        self._server = server

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        event: dict[str, Any] = {"time": _time_of(record), "level": record.levelname.lower()}
        event |= {"event": record.name, "server": self._server} | _parts_of(record)
        if record.exc_info:
            event["trace"] = self.formatException(record.exc_info)
        return to_json(event)


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _parts_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the event of a record, its fields, and its detail."""
    if record.name == EVENTS.name:
        operation: dict[str, Any] = json.loads(record.getMessage())
        return operation | {"event": "management operation"}
    template = maybe_template(record.msg) if isinstance(record.msg, str) else None
    args = record.args if isinstance(record.args, tuple) else ()
    if template is None or len(args) < len(template.keys):
        return {"detail": record.getMessage()}
    parts: dict[str, Any] = {"event": template.event}
    for key, value in zip(template.keys, args, strict=False):
        parts[key] = value if isinstance(value, int | float | str | None) else str(value)
    if template.detail is not None:
        rest = args[len(template.keys) :]
        parts["detail"] = template.detail % rest if rest else template.detail
    return parts


class Sparing(logging.Filter):
    """Drops events that come more than EVENTS_MAX times in WINDOW_SECONDS, and counts them.

    Those of one template are the same. The first ones are logged, and at the end how many were left
    out. Management operations and the level debug are never dropped.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], tuple[float, int]] = {}
        """When the window of each event began, and how many there were since."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log an event."""
        if record.levelno < logging.INFO or record.name in {EVENTS.name, _LOG.name}:
            return True
        self.report()
        key = record.name, str(record.msg)
        with self._lock:
            began_at, count = self._counts.get(key, (self._clock(), 0))
            self._counts[key] = began_at, count + 1
        return count < EVENTS_MAX

    def report(self, *, is_end: bool = False) -> None:
        """Log how many events were left out in windows that are over; at the end, in all."""
        now = self._clock()
        with self._lock:
            over = [
                (key, count)
                for key, (began_at, count) in self._counts.items()
                if is_end or now - began_at >= WINDOW_SECONDS
            ]
            for key, _ in over:
                del self._counts[key]
        for (_, message), count in over:
            if count > EVENTS_MAX:
                template = maybe_template(message)
                name = message if template is None else template.event
                left_out = count - EVENTS_MAX
                _LOG.warning("events left out name=%s count=%d", name, left_out)


class ProcessLog:
    """Takes the events of all loggers of this process, until it is closed."""

    def __init__(self, level: str, form: str, path: Path | None, *, server: str) -> None:
        """Raises ConfigurationError if the file cannot be written."""
        self._server = server
        self._errors = logging.StreamHandler(sys.stderr)
        self._file = None if path is None else open_lines(path, "log file")
        self._handler = self._file or self._errors
        self._sparing = Sparing()
        self._handler.addFilter(self._sparing)
        self.apply(level, form)
        logging.getLogger().addHandler(self._handler)
        if self._file is not None:
            self._errors.setFormatter(TextLines())
            logging.getLogger(line_file_logger).addHandler(self._errors)

    @property
    def has_file(self) -> bool:
        """Whether the log goes to a file."""
        return self._file is not None

    def apply(self, level: str, form: str) -> None:
        """Change the lowest level, and the form."""
        logging.getLogger().setLevel(level.upper())
        self._handler.setFormatter(JsonLines(self._server) if form == "json" else TextLines())

    def reopen(self) -> None:
        """Open the file again, as after it was moved away."""
        if self._file is not None:
            self._file.reopen()

    def report(self) -> None:
        """Log how many events were left out lately."""
        self._sparing.report()

    def close(self) -> None:
        """Write what is left. Idempotent."""
        self._sparing.report(is_end=True)
        logging.getLogger().removeHandler(self._handler)
        logging.getLogger(line_file_logger).removeHandler(self._errors)
        with suppress(OSError):
            self._handler.close()


def open_lines(path: Path, what: str) -> LineFile:
    """Return a file for events. Raises ConfigurationError if it cannot be opened."""
    try:
        return LineFile(path)
    except OSError as error:
        raise ConfigurationError(
            f"{what} {path} cannot be written: {error.strerror}; choose a regular file in a"
            " folder that this user can write"
        ) from error
