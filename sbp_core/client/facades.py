"""How the blocking classes follow from the asyncio classes: they are facades of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from sbp_core.client.io.loop_thread import loop_thread

A = TypeVar("A")
B = TypeVar("B")
F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")


class Facade(Protocol[A]):
    """A blocking object; `on_loop` does its work, on the loop of `io.loop_thread`."""

    on_loop: A


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Facade[A], P], T]:
    """Return the method of a facade that waits for a method of its asyncio class."""

    @wraps(method)
    def call(self: Facade[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return loop_thread().run(method(self.on_loop, *args, **kwargs))

    return call


def making(
    method: Callable[Concatenate[A, P], T], facade: Callable[[T], B]
) -> Callable[Concatenate[Facade[A], P], B]:
    """Return the method that makes a facade of what a method of the asyncio class makes."""

    @wraps(method)
    def make(self: Facade[A], /, *args: P.args, **kwargs: P.kwargs) -> B:
        return facade(method(self.on_loop, *args, **kwargs))

    signature = inspect.signature(method).replace(return_annotation=getattr(facade, "__name__", ""))
    make.__signature__ = signature  # type: ignore[attr-defined]
    return make


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
