"""The blocking clients do what those for asyncio do: they are generated from them."""

import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from sbp_core import app
from sbp_core.client import AsyncClient, Client

SCRIPT = Path(__file__).parents[2] / "tools" / "generate_blocking_client.py"
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
    for name, _ in inspect.getmembers(waiting, inspect.isfunction)
    if name[0] != "_"
]


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate_blocking_client", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parameters(method) -> set[str]:
    """The parameters with their kinds, annotations and defaults, but for the names of twins."""
    return {
        str(each).replace("Async", "") for each in inspect.signature(method).parameters.values()
    }


def test_the_committed_clients_are_the_generated_ones():
    result = subprocess.run(
        [sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("blocking", "waiting", "name"),
    METHODS,
    ids=[f"{blocking.__name__}-{name}" for blocking, _, name in METHODS],
)
def test_methods_of_both_clients_accept_and_document_the_same(blocking, waiting, name):
    ours, theirs = getattr(blocking, name), getattr(waiting, name)
    assert parameters(theirs) <= parameters(ours)
    assert ours.__doc__.startswith(theirs.__doc__.rstrip())
    assert not inspect.iscoroutinefunction(ours)


@pytest.mark.parametrize(
    "statement", ["await asyncio.sleep(0)", "item = await anext(items)", "class AsyncThing: pass"]
)
def test_a_word_without_a_blocking_counterpart_is_refused(generate, statement):
    source = generate.CLIENT.source_path.read_text(encoding="utf-8") + f"\n{statement}\n"
    with pytest.raises(ValueError, match="has no blocking counterpart"):
        generate.blocking(source)


def test_a_phrase_that_is_no_longer_there_is_refused(generate):
    source = generate.CLIENT.source_path.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="no longer says"):
        generate.blocking(source.replace("The tasks of one loop", "Tasks"))


def test_a_change_of_the_asyncio_client_is_a_change_of_the_blocking_one(generate):
    source = generate.CLIENT.source_path.read_text(encoding="utf-8")
    changed = generate.blocking(source.replace("async def ping(", "async def renamed("))
    committed = generate.CLIENT.target_path.read_text(encoding="utf-8")
    assert changed == committed.replace("def ping(", "def renamed(")
