"""Damage to the log's files, in words that say where it is and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from sbp_core.errors import LogCorruptionError


def corruption(path: Path, position: int, reason: str) -> LogCorruptionError:
    """Return the error for damage that must not be cut."""
    directory = quote(str(path.parent))
    return LogCorruptionError(
        f"{path} is damaged at log position {position}: {reason}. Nothing was changed. Restore the"
        " file from a backup; or stop the server, look at what is lost with `sbp log check"
        f" {directory}`, and go on without that: `sbp log repair {directory}`"
    )


@contextmanager
def naming_damage(path: Path, position: int) -> Iterator[None]:
    """Raise damage that the body finds in octets as damage of `path` at log position `position`."""
    try:
        yield
    except LogCorruptionError as error:
        raise corruption(path, position, str(error)) from error
