"""When the certificates of this process expire: lines of the log, a metric, a reason of `/readyz`.

The certificates are those that `sbp_core.tls` read last. A file that was replaced counts from the
next connection or SIGHUP on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Final

from sbp_core import tls

_LOG: Final = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 60.0
"""How often a process that serves calls `warn`."""
_DAY_SECONDS: Final = 86_400
_STAGES: Final = (0, 1, 7, 30)
"""Days left at which a line is logged."""

_stages: Final[dict[Path, int]] = {}
"""The last stage that was logged, by file."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """When a file expires, in seconds since the epoch.

    `first` is when the first certificate in the file expires. The file is of no use from `last` on,
    when its own certificate, which is in front of its chain, or its last authority has expired.
    """

    path: Path
    first: float
    last: float


def expiries(contexts: tls.Contexts) -> Iterator[Expiry]:
    """Yield when each file of one end expires. Files that cannot be parsed are left out."""
    contexts.current()
    for path, data in contexts.certificates.items():
        ends = _ends(data)
        if ends:
            is_own = str(path) == str(contexts.files.cert_file)
            yield Expiry(path, min(ends), ends[0] if is_own else max(ends))


def warn(now: float | None = None) -> None:
    """Log once for each file that 30 days, 7 days or 1 day are left, and that it has expired."""
    now = time.time() if now is None else now
    found = {each.path: each for contexts in tls.all_contexts() for each in expiries(contexts)}
    for path, each in found.items():
        days = (each.first - now) / _DAY_SECONDS
        stage = next((each for each in _STAGES if days <= each), None)
        former = _stages.pop(path, None)
        if stage is None:
            continue
        _stages[path] = stage
        if stage == former:
            continue
        if stage:
            _LOG.warning("certificate expires file=%s at=%s: replace it", path, shown(each.first))
        else:
            _LOG.error("certificate has expired file=%s at=%s: replace it", path, shown(each.first))


def shown(seconds: float) -> str:
    """Return a time as text."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


@lru_cache(maxsize=64)
def _ends(data: bytes) -> tuple[float, ...]:
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificates(data)
    except ValueError:  # OpenSSL has accepted it, in a form that this parser does not know
        return ()
    return tuple(each.not_valid_after_utc.timestamp() for each in found)
