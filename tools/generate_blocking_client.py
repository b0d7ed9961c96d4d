"""Write the blocking client from the asyncio one: sbp_core/client/aio.py is the only source.

    python tools/generate_blocking_client.py            write it
    python tools/generate_blocking_client.py --check    exit 1 when the committed one differs

The words `async` and `await` are left out, and the names and phrases below are replaced. The
differences of the two clients are not here: see `Client` in sbp_core/client/blocking.py.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

CLIENT: Final = Path(__file__).parents[1] / "sbp_core" / "client"
SOURCE: Final = CLIENT / "aio.py"
TARGET: Final = CLIENT / "socket_client.py"

NAMES: Final[Mapping[str, str]] = {
    "AsyncAppender": "Appender",
    "AsyncClient": "SocketClient",
    "AsyncIterator": "Iterator",
    "AsyncPool": "ConnectionPool",
    "AsyncRunner": "BlockingRunner",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aio_transport": "blocking_transport",
}
PHRASES: Final[Mapping[str, str]] = {
    '"""The asyncio client: its methods."""': (
        '"""The blocking client, over sockets alone. Generated from aio.py: do not edit.\n\n'
        'Change that one, and run `make client`.\n"""'
    ),
    "An asyncio client of the cluster": "A blocking client of the cluster",
    "The tasks of one loop may share it.": "Threads may share it.",
}
_LEFT: Final = re.compile(r"\b(?:await|\w*[aA]sync\w*|anext|aiter|aclose|asend|__a[a-z]+__)\b")


def blocking(source: str) -> str:
    """Return the blocking twin of a module. Raises ValueError if a word of asyncio is left."""
    text = source
    for phrase, other in PHRASES.items():
        if phrase not in text:
            raise ValueError(f"{SOURCE.name} no longer says {phrase!r}: change PHRASES with it")
        text = text.replace(phrase, other)
    text = re.sub(r"\b(?:async|await) +", "", text)
    text = re.sub(r"\w+", lambda word: NAMES.get(word[0], word[0]), text)
    left = _LEFT.search(text)
    if left is not None:
        raise ValueError(f"{left[0]!r} of {SOURCE.name} has no blocking counterpart: add it here")
    return _ruff(_ruff(text, "check", "--fix", "--quiet"), "format")


def _ruff(text: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Write the module, or compare with --check; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    is_check = parser.parse_args().check
    text = blocking(SOURCE.read_text(encoding="utf-8"))
    if not is_check:
        TARGET.write_text(text, encoding="utf-8")
    elif not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
        print(f"{TARGET.name} differs from {SOURCE.name}; run `make client` and commit the result")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
