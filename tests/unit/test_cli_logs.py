"""The log of a server: templates, lines of text and JSON, and events that come too often."""

import json
import logging
import sys

import pytest

from sbp_core.cli.logs import EVENTS_MAX, WINDOW_SECONDS, JsonLines, Sparing, TextLines
from sbp_core.server.runtime import LogTally

RANGE_SEALED = "range sealed stream=%d range=%d: by %s"


def record(message: str, *args: object, level: int = logging.WARNING, name: str = "sbp_core.a"):
    return logging.LogRecord(name, level, "file", 1, message, args, None)


def parsed(one: logging.LogRecord) -> dict:
    line = JsonLines("pd /data").format(one)
    assert len(line.splitlines()) == 1
    return json.loads(line)


def test_a_line_of_json_has_the_event_and_its_fields():
    event = parsed(record(RANGE_SEALED, 3, 1, "a: stream=7\n2026 ERROR forged\x1b[2J"))
    assert event.pop("time").endswith("+00:00")
    assert event == {
        "level": "warning",
        "event": "range sealed",
        "server": "pd /data",
        "stream": 3,
        "range": 1,
        "detail": "by a: stream=7\n2026 ERROR forged\x1b[2J",
    }


@pytest.mark.parametrize(
    ("message", "args", "expected"),
    [
        ("stopped", (), {"event": "stopped"}),
        ("stopped: all of it", (), {"event": "stopped", "detail": "all of it"}),
        ("took took_s=%.1f", (0.25,), {"event": "took", "took_s": 0.25}),
        ("found path=%.200r ids=%s", ("a", [1]), {"event": "found", "path": "a", "ids": "[1]"}),
        ("%s is odd: %s", ("it", "why"), {"event": "sbp_core.a", "detail": "it is odd: why"}),
        ("lost a=%s b=%s", ({"a": 1, "b": 2},), {"event": "sbp_core.a"}),
    ],
)
def test_messages_of_every_form_are_events(message, args, expected):
    one = record(message, *args) if "lost" not in message else record("lost %(a)s", {"a": 1})
    event = parsed(one)
    assert {name: event[name] for name in expected} == expected


def test_a_management_operation_is_an_event_with_its_fields():
    text = json.dumps({"operation": "DELETE_STREAMS", "server": "range server", "stream_id": 3})
    event = parsed(record("%s", text, name="sbp.audit"))
    assert (event["event"], event["operation"]) == ("management operation", "DELETE_STREAMS")


def test_a_trace_is_a_field_in_json_and_lines_in_text():
    try:
        raise ValueError("\x1b[2J")
    except ValueError:
        failed = record("failed")
        failed.exc_info = sys.exc_info()
    assert parsed(failed)["trace"].endswith("ValueError: \x1b[2J")
    first, *trace = TextLines().format(failed).splitlines()
    assert first.endswith("failed")
    assert trace[-1] == r"ValueError: \x1b[2J"


def test_a_line_of_text_is_one_line_whatever_peers_put_into_it():
    line = TextLines().format(record("%s", "refused: a\n2026-01-01 ERROR forged\x1b[2J\u202e"))
    time, _, rest = line.partition(" ")
    assert time.endswith("+00:00")
    assert rest == r"WARNING sbp_core.a: refused: a 2026-01-01 ERROR forged\x1b[2J\u202e"


def test_what_comes_too_often_is_counted(caplog):
    now = 0.0
    sparing = Sparing(lambda: now)

    def admitted(count: int, message: str = RANGE_SEALED, **given) -> int:
        return sum(sparing.filter(record(message, 1, 2, "x", **given)) for _ in range(count))

    assert admitted(EVENTS_MAX + 5) == EVENTS_MAX
    assert admitted(1, "another stream=%d") == 1
    assert admitted(EVENTS_MAX + 5, level=logging.DEBUG) == EVENTS_MAX + 5
    assert admitted(EVENTS_MAX + 5, name="sbp.audit") == EVENTS_MAX + 5
    sparing.report()
    assert caplog.messages == []
    now = WINDOW_SECONDS
    assert admitted(1, "another stream=%d") == 1
    assert caplog.messages == ["events left out name=range sealed count=5"]
    assert admitted(EVENTS_MAX + 2) == EVENTS_MAX
    sparing.report(is_end=True)
    assert caplog.messages[1:] == ["events left out name=range sealed count=2"]


def test_a_tally_is_due_at_once_and_then_now_and_then():
    class Clock:
        now = 5.0

        def monotonic(self) -> float:
            return self.now

        def wall_ms(self) -> int:
            return 0

    clock = Clock()
    tally = LogTally(clock, interval_ms=1000)
    assert tally.add(2, 1) == (2, 1)
    assert tally.add(3, 0) is None
    clock.now = 6.0
    assert tally.add(1, 1) == (4, 1)
    assert tally.add(1, 1) is None
