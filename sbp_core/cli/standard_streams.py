"""Standard input, output and error as the command was given them: maybe full, maybe closed."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Final, TextIO

from sbp_core.errors import SbpError

_WRONG_WAY: Final = (os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)
"""How /dev/null stands in for standard input, output and error: using them fails, as before."""


class OutputError(SbpError):
    """Standard output cannot be written."""


class ReaderGoneError(Exception):
    """Nothing reads standard output any longer, as after `head`; that is no failure."""


def settle() -> None:
    """Make the three streams usable, or at least harmless. Call it before anything is opened.

    The descriptor of a stream that was closed would be given to the next file or socket, and
    whatever is printed would end there. Characters that the terminal lacks become escapes.
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


def flush() -> None:
    """Write what is still buffered. Raises OutputError and ReaderGoneError."""
    with writing():
        sys.stdout.flush()


def write_error_line(text: str) -> None:
    """Write a line to standard error; where that cannot be, nobody is there to be told."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Send what is buffered nowhere, so that the end of the process stays quiet."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
