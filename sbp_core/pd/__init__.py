"""The placement driver: metadata of streams and ranges, and where ranges are placed."""

from sbp_core.pd.driver import PlacementDriver

__all__ = ["PlacementDriver"]
