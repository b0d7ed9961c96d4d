"""The connector's log, and the errors that leave it through Spark."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Final

from sbp_core.errors import SbpError

LOG: Final = logging.getLogger("sbp_spark")


class plain_errors:  # noqa: N801 - reads as a statement
    """Raise each SbpError of the body without the frames and errors that led to it.

    Spark shows its user the whole traceback of what a data source raises. An SbpError says by
    itself what is wrong and what to do; its traceback goes to the log, at level DEBUG.
    """

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Raise an SbpError from here: returning would keep its frames."""
        if isinstance(error, SbpError):
            LOG.debug("raised to Spark error=%s", type(error).__name__, exc_info=error)
            raise error.with_traceback(None) from None
