"""What is looked at once in a Spark session, whichever of its Python workers does it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Final

from sbp_spark.options import Endpoint, Servers
from sbp_spark.worker_process import maybe_session_folder

_checked: Final[set[tuple[int, Endpoint, str]]] = set()


def check_once(servers: Servers, purpose: str, check: Callable[[], object]) -> None:
    """Run `check` unless it has succeeded before for this cluster and purpose.

    So a first use finds mistakes at once, and a later one does not end a running query when the
    servers are away for a while. Spark plans in any worker, and ends those that were idle for a
    minute: that it succeeded is told by a file among those of the session, which Spark removes.
    Raises what `check` raises.
    """
    key = (os.getpid(), servers.endpoint, purpose)
    if key in _checked:
        return
    folder = maybe_session_folder()
    mark = None if folder is None else folder / _mark_name(servers.endpoint, purpose)
    if mark is None or not mark.exists():
        check()
        with suppress(OSError):  # then another worker looks again
            if mark is not None:
                mark.touch()
    _checked.add(key)


def _mark_name(endpoint: Endpoint, purpose: str) -> str:
    return f".sbp-{sha256(f'{endpoint} {purpose}'.encode()).hexdigest()}"
