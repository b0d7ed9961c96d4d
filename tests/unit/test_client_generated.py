"""The blocking client does what the asyncio client does: it is generated from it."""

import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from sbp_core.client import AsyncClient, Client

SCRIPT = Path(__file__).parents[2] / "tools" / "generate_blocking_client.py"
METHODS = [
    name for name, _ in inspect.getmembers(AsyncClient, inspect.isfunction) if name[0] != "_"
]


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate_blocking_client", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_client_is_the_generated_one():
    result = subprocess.run(
        [sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_both_clients_accept_and_document_the_same(name):
    ours, theirs = getattr(Client, name), getattr(AsyncClient, name)
    wanted = inspect.signature(theirs).parameters.items()
    assert wanted <= inspect.signature(ours).parameters.items()
    assert ours.__doc__.startswith(theirs.__doc__.rstrip())
    assert not inspect.iscoroutinefunction(ours)


@pytest.mark.parametrize(
    "statement", ["await asyncio.sleep(0)", "item = await anext(items)", "class AsyncThing: pass"]
)
def test_a_word_without_a_blocking_counterpart_is_refused(generate, statement):
    source = generate.SOURCE.read_text(encoding="utf-8") + f"\n{statement}\n"
    with pytest.raises(ValueError, match="has no blocking counterpart"):
        generate.blocking(source)


def test_a_phrase_that_is_no_longer_there_is_refused(generate):
    source = generate.SOURCE.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="no longer says"):
        generate.blocking(source.replace("The tasks of one loop", "Tasks"))


def test_a_change_of_the_asyncio_client_is_a_change_of_the_blocking_one(generate):
    source = generate.SOURCE.read_text(encoding="utf-8")
    changed = generate.blocking(source.replace("async def ping(", "async def renamed("))
    committed = generate.TARGET.read_text(encoding="utf-8")
    assert changed == committed.replace("def ping(", "def renamed(")
