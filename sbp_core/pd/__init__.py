"""The placement driver: metadata of streams and ranges, and where ranges are placed."""

from sbp_core.pd.driver import PlacementDriver
from sbp_core.pd.driver_settings import PlacementDriverSettings

__all__ = ["PlacementDriver", "PlacementDriverSettings"]
