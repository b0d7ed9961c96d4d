"""What is looked up once in a Spark session, whichever of its Python workers does it.

It depends on the folder that the workers of a session share for the session's files. Where there is
none, or it cannot be written, each worker looks for itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from sbp_spark.options import Endpoint, FoundStream, Servers
from sbp_spark.spark_internals.worker_process import maybe_session_folder

Found = Mapping[str, FoundStream]
"""Streams by what options call them."""

_found: Final[dict[tuple[int, Endpoint, str], Found]] = {}


def find_once(servers: Servers, purpose: str, find: Callable[[], Found]) -> Found:
    """Return what `find` returned when it first succeeded for this cluster and purpose.

    So a first use finds mistakes at once, and a later one does not end a running query when the
    servers are away for a while. Spark plans in any worker, and ends those that were idle for a
    minute: what was found is in a file among those of the session, which Spark removes. Raises
    what `find` raises.
    """
    key = (os.getpid(), servers.endpoint, purpose)
    if key not in _found:
        folder = maybe_session_folder()
        path = None if folder is None else folder / _file_name(servers.endpoint, purpose)
        found = _maybe_read(path)
        if found is None:
            found = find()
            _write(path, found)
        _found[key] = found
    return _found[key]


def _maybe_read(path: Path | None) -> Found | None:
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    return {name: FoundStream(*pair) for name, pair in json.loads(text).items()}


def _write(path: Path | None, found: Found) -> None:
    """Write a file as a whole, as others may read it; if that fails, they look again."""
    if path is None:
        return
    with (
        suppress(OSError),
        NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file,
    ):
        json.dump(found, file)
        file.close()
        Path(file.name).replace(path)


def _file_name(endpoint: Endpoint, purpose: str) -> str:
    return f".sbp-{sha256(f'{endpoint} {purpose}'.encode()).hexdigest()}"
