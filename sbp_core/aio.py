"""`connect` for asyncio: what `sbp_core.connect` returns, with methods to await."""

from sbp_core.app.aio import connect

__all__ = ["connect"]
