"""The blocking clients do what those for asyncio do: they are facades of them."""

import inspect

import pytest

from sbp_core import app
from sbp_core.client import AsyncClient, Client

TWINS = [
    (Client, AsyncClient),
    (app.Connection, app.AsyncConnection),
    (app.Consumer, app.AsyncConsumer),
    (app.Producer, app.AsyncProducer),
    (app.Transaction, app.AsyncTransaction),
]
METHODS = [
    (blocking, waiting, name)
    for blocking, waiting in TWINS
    for name, method in inspect.getmembers(waiting, inspect.isfunction)
    if name[0] != "_" and not hasattr(method, "is_internal")
]


def parameters(method) -> set[str]:
    """The parameters with their kinds, annotations and defaults, but for the names of twins."""
    return {
        str(each).replace("Async", "") for each in inspect.signature(method).parameters.values()
    }


@pytest.mark.parametrize(
    ("blocking", "waiting", "name"),
    METHODS,
    ids=[f"{blocking.__name__}-{name}" for blocking, _, name in METHODS],
)
def test_methods_of_both_clients_accept_and_document_the_same(blocking, waiting, name):
    ours, theirs = getattr(blocking, name), getattr(waiting, name)
    assert parameters(theirs) == parameters(ours)
    assert ours.__doc__ == theirs.__doc__
    assert not inspect.iscoroutinefunction(ours)
