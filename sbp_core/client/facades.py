"""How the blocking classes and those for asyncio refer to each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def documented_as(method: Callable[..., Any]) -> Callable[[F], F]:
    """Copy the docstring of the asyncio method. The source of the facade has its first line."""

    def documented(facade: F) -> F:
        facade.__doc__ = method.__doc__
        return facade

    return documented


def internal(method: F) -> F:
    """Mark a method that facades call, and no user: the reference pages leave it out."""
    method.is_internal = True  # type: ignore[attr-defined]
    return method
