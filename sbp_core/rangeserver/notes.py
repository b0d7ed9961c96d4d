"""Notes beside the log: small JSON files that a server can do without.

A note is written atomically and not synced, so a power cut may leave an older note, or none. The
checksum detects a damaged note.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from sbp_core import limits
from sbp_core.log.disk import Disk, describe_os_error, write_file
from sbp_core.regular_files import read_regular

_LOG: Final = logging.getLogger(__name__)


def write_note(disk: Disk, path: Path, values: Mapping[str, int | str]) -> None:
    """Write a note, or replace it; a failure is logged."""
    content = json.dumps({**values, "checksum": _checksum(values)}).encode()
    try:
        write_file(disk, path, [content], is_durable=False)
    except OSError as error:
        _LOG.warning("note not written path=%s: %s", path, describe_os_error(error))


def maybe_note(path: Path, types: Mapping[str, type]) -> dict[str, Any] | None:
    """Return the values of a note by name, None if it is missing or unreadable."""
    try:
        content = json.loads(read_regular(path, limits.SMALL_FILE_BYTES_MAX))
        values = {name: kind(content[name]) for name, kind in types.items()}
        if content["checksum"] != _checksum(values):
            raise ValueError("its checksum is wrong")
        return values
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        _LOG.warning("note not readable path=%s: %s; it is written again", path, cause_of(error))
        return None


def cause_of(error: Exception) -> str:
    """Return why a file cannot be read, in words."""
    return describe_os_error(error) if isinstance(error, OSError) else "it is damaged"


def _checksum(values: Mapping[str, int | str]) -> str:
    return blake2b(" ".join(map(str, values.values())).encode(), digest_size=8).hexdigest()
