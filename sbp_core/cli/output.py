"""Input and output of the command: text for people, JSON for programs, errors in one line.

Names, values and messages come from peers and files. All of it is made safe to show: raw, an ESC
sequence could move the cursor, retitle the window or answer for the user, and a bidirectional
control could show `txt.exe` for `exe.txt`. Standard input, output and error may be full or closed:
writing to standard output raises OutputError or ReaderGoneError, with which the command ends.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any, BinaryIO, Final, TextIO

from sbp_core.errors import SbpError, StatusError
from sbp_core.wording import escape, is_unsafe

_WRONG_WAY: Final = (os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)
"""Modes of /dev/null in place of standard input, output and error: using them fails, as before."""


_READER_LOOK_MS: Final = 500
"""How often a watch of the reader looks whether it is still needed."""


class OutputError(SbpError):
    """Standard output cannot be written."""


class ReaderGoneError(Exception):
    """Nothing reads standard output any longer, as after `head`; that is no failure."""


def settle() -> None:
    """Make the three streams usable, or at least harmless. Call it before anything is opened.

    The descriptor of a stream that was closed would be given to the next file or socket, and
    output would be written there. Characters that the terminal lacks become escapes.
    """
    for descriptor, access in enumerate(_WRONG_WAY):
        try:
            os.fstat(descriptor)
        except OSError:
            os.dup2(os.open(os.devnull, access), descriptor)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, "r", closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Raise what goes wrong with standard output in the body as OutputError or ReaderGoneError."""
    try:
        yield
    except BrokenPipeError as error:
        discard(sys.stdout)
        raise ReaderGoneError from error
    except OSError as error:
        discard(sys.stdout)
        raise OutputError(f"standard output cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def noticing_reader() -> Iterator[None]:
    """Raise ReaderGoneError in the body once nothing reads standard output, also while it waits.

    Only the main thread can be interrupted, and only a pipe says that its reader is gone.
    """
    descriptor = sys.stdout.fileno() if _is_pipe(sys.stdout) else -1
    if descriptor < 0 or threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_gone(_: int, __: FrameType | None) -> None:
        raise ReaderGoneError

    def watch() -> None:
        poller = select.poll()
        poller.register(descriptor, 0)  # errors are reported in any case
        while not is_over.is_set():
            if poller.poll(_READER_LOOK_MS):
                os.kill(os.getpid(), signal.SIGPIPE)
                return

    is_over = threading.Event()
    former = signal.signal(signal.SIGPIPE, on_gone)
    watcher = threading.Thread(target=watch, name="sbp-reader", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        signal.signal(signal.SIGPIPE, former)


def _is_pipe(stream: TextIO) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # closed, or no file
        return False


def flush() -> None:
    """Write the rest of the buffer. Raises OutputError and ReaderGoneError."""
    with writing():
        sys.stdout.flush()


def write_error_line(text: str) -> None:
    """Write a line to standard error, or nowhere if that cannot be written."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Discard the buffer, so that the process ends without an error message."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def one_line(text: str) -> str:
    """Return the text in one line, each stretch of white space as one space, safe to show."""
    return escape(" ".join(text.split()))


def to_json(value: Any, *, is_ascii: bool = False) -> str:
    r"""Return a value in JSON, unsafe characters in its strings as \u001b and the like.

    Programs read the same value. With `is_ascii` everything outside of ASCII is written so.
    """
    text = json.dumps(value, ensure_ascii=is_ascii)
    if text.isprintable():
        return text
    return "".join(_json_shown(char) if is_unsafe(char) else char for char in text)


def value_text(data: bytes) -> str:
    r"""Return the bytes of a value as text for a terminal: tabs stay, what is not UTF-8 is \xff."""
    return escape(data.decode("utf-8", errors="backslashreplace"), spared="\t")


def write_line(text: str) -> None:
    """Write one line to standard output, at once."""
    write_lines([text])


def write_lines(texts: Iterable[str]) -> None:
    """Write lines to standard output, all at once."""
    with writing():
        print("\n".join(map(escape, texts)), flush=True)


def write_json(value: Any) -> None:
    """Write one JSON value as a line to standard output."""
    with writing():
        print(to_json(value, is_ascii=True))


def write_result(value: Any, text: str, *, is_json: bool) -> None:
    """Write a line to standard output: the value for programs, or the text for people."""
    if is_json:
        write_json(value)
    else:
        write_line(text)


def write_table(heading: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write rows in aligned columns, the heading above them; it is bold on a terminal."""
    cells = [[escape(str(cell)) for cell in row] for row in (heading, *rows)]
    if sys.stdout.isatty():
        text = _terminal_table(cells)
    else:
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        padded = [
            [cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in cells
        ]
        text = "".join(f"{'  '.join(row).rstrip()}\n" for row in padded)
    with writing():
        print(text, end="", flush=True)


def _terminal_table(cells: Sequence[Sequence[str]]) -> str:
    """Return a table as wide as its cells, so that what is copied from it is whole."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in cells[0]:
        table.add_column(Text(title), no_wrap=True)
    for row in cells[1:]:
        table.add_row(*map(Text, row))
    console = Console(width=sum(max(map(cell_len, each)) + 2 for each in zip(*cells, strict=True)))
    with console.capture() as captured:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def write_values(values: Iterable[bytes]) -> None:
    """Write the values of records, a newline behind each: as they are, safe on a terminal."""
    if sys.stdout.isatty():
        values = (value_text(value).encode() for value in values)
    _write_bytes(values)


def write_records(values: Iterable[object]) -> None:
    """Write records as JSON in UTF-8, one in a line."""
    _write_bytes(to_json(value).encode() for value in values)


def show_time(time_ms: int) -> str:
    """Return a time, ms since 1970 UTC, in ISO 8601; "unknown" if it is negative."""
    if time_ms < 0:
        return "unknown"
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="seconds")
    except OverflowError:
        return f"{time_ms} ms"


def write_error(error: BaseException, *, is_json: bool = False) -> None:
    """Write an error and its notes as one line to standard error; as an object for programs.

    The object has the class of the error, its text, and the status code if a server sent one.
    """
    notes: list[str] = getattr(error, "__notes__", [])
    text = "; ".join([str(error), *notes])
    if not is_json:
        write_notice(text)
        return
    found: dict[str, object] = {"error": type(error).__name__, "message": text}
    if isinstance(error, StatusError):
        found["status"] = error.code
    write_error_line(to_json(found, is_ascii=True))


def write_notice(text: str) -> None:
    """Write a notice to standard error."""
    write_error_line(f"sbp: {one_line(text)}")


def _write_bytes(lines: Iterable[bytes]) -> None:
    with writing():
        write_all(sys.stdout.buffer, b"".join(line + b"\n" for line in lines))


def write_all(file: BinaryIO, data: memoryview | bytes) -> None:
    """Write all bytes, at once. With PYTHONUNBUFFERED a pipe takes only a part at a time."""
    left = memoryview(data).cast("B")
    while left:
        left = left[file.write(left) or 0 :]
    file.flush()


def _json_shown(char: str) -> str:
    return json.dumps(char)[1:-1] if char != "\x7f" else "\\u007f"
