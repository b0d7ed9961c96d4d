"""The file `release` of a data folder: the release of sbp that served it last.

A release that cannot read what another one wrote knows only that it cannot. With this it says which
release can.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from sbp_core import __version__
from sbp_core.errors import ConfigurationError, SbpError
from sbp_core.log.disk import describe_os_error
from sbp_core.regular_files import open_private, read_regular

RELEASE_NAME: Final = "release"

_LOG: Final = logging.getLogger(__name__)
_BYTES_MAX: Final = 64


class ReleaseNote:
    """The note in one folder, as it was at the start. Without a note `last` is None."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / RELEASE_NAME
        self.last = _read(self._path)

    def write(self) -> None:
        """Note that this release serves. A failure is logged: the note is only for messages."""
        if self.last == __version__:
            return
        fresh = self._path.with_name(f"{RELEASE_NAME}.tmp")
        try:
            descriptor = open_private(fresh, os.O_WRONLY | os.O_TRUNC)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(f"{__version__}\n")
            fresh.replace(self._path)
        except OSError as error:
            _LOG.warning("note not written path=%s: %s", self._path, describe_os_error(error))
        else:
            self.last = __version__

    def explained(self, error: SbpError) -> SbpError:
        """Return the error of a start, with the other release that served the folder last."""
        if self.last in {None, __version__}:
            return error
        kind = ConfigurationError if isinstance(error, ConfigurationError) else SbpError
        return kind(
            f"{error} (sbp {self.last} served {self._path.parent} last; this is sbp {__version__})"
        )


def _read(path: Path) -> str | None:
    try:
        text = read_regular(path, _BYTES_MAX).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if text.isprintable() and text else None
