"""The placement driver: metadata of streams and ranges, and where ranges are placed."""

from sbp_core.pd.server import PlacementDriver
from sbp_core.pd.settings import PlacementDriverSettings

__all__ = ["PlacementDriver", "PlacementDriverSettings"]
