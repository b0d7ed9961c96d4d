"""Where records go: standard output, or a file that is there under its name once it is complete."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from sbp_core.cli.output import OutputError, write_all, writing

_UMASK_MODE: Final = 0o666


@dataclass(frozen=True, slots=True)
class Target:
    """A file that is open for writing; `guard` makes errors of the command of its errors."""

    file: BinaryIO
    guard: Callable[[], AbstractContextManager[None]]
    is_terminal: bool

    def write(self, data: memoryview | bytes) -> None:
        """Write bytes, at once. Raises OutputError, ReaderGoneError."""
        with self.guard():
            write_all(self.file, data)


def standard_output() -> Target:
    """Return standard output as it is."""
    return Target(sys.stdout.buffer, writing, sys.stdout.isatty())


@contextmanager
def file_target(path: str) -> Iterator[Target]:
    """Open a file, which replaces the one at `path` when the body ends.

    Nothing is left of it if the body raises. A device or a pipe is written as it is. Raises
    OutputError.
    """

    @contextmanager
    def guard() -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error

    with guard():
        place = Path(path).resolve()
        if place.exists() and not place.is_file():
            temporary = None
            file: BinaryIO = place.open("wb")
        else:
            descriptor, made = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name[:100]}.")
            temporary = Path(made)
            file = os.fdopen(descriptor, "wb")
    try:
        yield Target(file, guard, file.isatty())
        with guard():
            _complete(file, temporary, place)
    except BaseException:
        with suppress(OSError):
            file.close()
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()
        raise


def _complete(file: BinaryIO, temporary: Path | None, place: Path) -> None:
    """Give a file that is on the disk its name, and the mode of any new file."""
    file.flush()
    if temporary is not None:
        mask = os.umask(0)
        os.umask(mask)
        os.fchmod(file.fileno(), _UMASK_MODE & ~mask)
        os.fsync(file.fileno())
        temporary.replace(place)
    file.close()
