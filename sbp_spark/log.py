"""The log of the connector."""

from __future__ import annotations

import logging
from typing import Final

LOG: Final = logging.getLogger("sbp_spark")
