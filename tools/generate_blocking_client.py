"""Write the blocking clients from those for asyncio, which are the only source.

    python tools/generate_blocking_client.py            write them
    python tools/generate_blocking_client.py --check    exit 1 when a committed one differs

The words `async` and `await` are left out, and the names and phrases below are replaced. The
differences of the two clients are not here: see `Client` in sbp_core/client/blocking.py, and the
gates in sbp_core/app/gates.py.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

CORE: Final = Path(__file__).parents[1] / "sbp_core"


class Twin(NamedTuple):
    """A module for asyncio, and the blocking one that is made of it; both relative to sbp_core.

    Each of the `phrases` has to be in the source.
    """

    source: str
    target: str
    names: Mapping[str, str]
    phrases: Mapping[str, str]

    @property
    def source_path(self) -> Path:
        """The module for asyncio."""
        return CORE / self.source

    @property
    def target_path(self) -> Path:
        """The blocking module."""
        return CORE / self.target


_CLIENT_NAMES: Final[Mapping[str, str]] = {
    "AsyncAppender": "Appender",
    "AsyncClient": "SocketClient",
    "AsyncGenerator": "Generator",
    "AsyncGroupMethods": "GroupMethods",
    "AsyncPool": "ConnectionPool",
    "AsyncRunner": "BlockingRunner",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aio_groups": "socket_groups",
    "aio_transport": "blocking_transport",
}
CLIENT: Final = Twin(
    "client/aio.py",
    "client/socket_client.py",
    _CLIENT_NAMES,
    {
        '"""The asyncio client: its methods."""': (
            '"""The blocking client, over sockets alone. Generated from aio.py: do not edit.\n\n'
            'Change that one, and run `make client`.\n"""'
        ),
        "An asyncio client of the cluster": "A blocking client of the cluster",
        "The tasks of one loop may share it.": "Threads may share it.",
    },
)
GROUPS: Final = Twin(
    "client/aio_groups.py",
    "client/socket_groups.py",
    _CLIENT_NAMES,
    {
        '"""The methods of the asyncio client for consumer groups: their cursors and members."""': (
            '"""The methods of the blocking client for consumer groups: their cursors and'
            " members.\n\nGenerated, as socket_client.py is: do not edit. Run `make client`.\n"
            '"""'
        ),
    },
)

_APP_NAMES: Final[Mapping[str, str]] = {
    "AsyncAssignment": "Assignment",
    "AsyncBatchIterator": "BatchIterator",
    "AsyncClient": "Client",
    "AsyncCommitter": "Committer",
    "AsyncConnection": "Connection",
    "AsyncConsumer": "Consumer",
    "AsyncDelivery": "Delivery",
    "AsyncFetcher": "Fetcher",
    "AsyncGate": "Gate",
    "AsyncGenerator": "Generator",
    "AsyncIterator": "Iterator",
    "AsyncMember": "Member",
    "AsyncProducer": "Producer",
    "AsyncRecordIterator": "RecordIterator",
    "AsyncTransaction": "Transaction",
    "AsyncWholeSelection": "WholeSelection",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "StopAsyncIteration": "StopIteration",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclosing": "closing",
    "asynccontextmanager": "contextmanager",
}


_APP_IMPORTS: Final[Mapping[str, str]] = {"sbp_core.app.aio": "sbp_core.app.blocking"}


def _app(name: str, phrases: Mapping[str, str]) -> Twin:
    header = {
        ', for asyncio."""': (
            f".\n\nGenerated from ../aio/{name}: do not edit."
            ' Change that one, and run `make client`.\n"""'
        )
    }
    return Twin(f"app/aio/{name}", f"app/blocking/{name}", _APP_NAMES, {**header, **phrases})


TWINS: Final = (
    CLIENT,
    GROUPS,
    _app("assignment.py", {}),
    _app("member.py", {}),
    _app(
        "connection.py",
        {
            **_APP_IMPORTS,
            "The tasks of one loop may share it": "Threads may share it",
            "each consumer is for one task": "each consumer is for one thread",
        },
    ),
    _app(
        "consumer.py",
        {
            **_APP_IMPORTS,
            "For one task.": "For one thread.",
            "another task waits": "another thread waits",
        },
    ),
    _app("fetching.py", {"import asyncio\n": "", "asyncio.sleep": "time.sleep"}),
    _app("iterating.py", _APP_IMPORTS),
    _app("committing.py", {}),
    _app("targets.py", {}),
    _app("transaction.py", {**_APP_IMPORTS, "For one task.": "For one thread."}),
    _app(
        "producer.py",
        {**_APP_IMPORTS, "The tasks of one loop may share it.": "Threads may share it."},
    ),
)
_LEFT: Final = re.compile(r"\b(?:await|\w*[aA]sync\w*|anext|aiter|aclos\w+|asend|__a[a-z]+__)\b")


def blocking(source: str, twin: Twin = CLIENT) -> str:
    """Return the blocking twin of a module. Raises ValueError if a word of asyncio is left."""
    text = source
    for phrase, other in twin.phrases.items():
        if phrase not in text:
            raise ValueError(f"{twin.source} no longer says {phrase!r}: change its phrases too")
        text = text.replace(phrase, other)
    text = re.sub(r"\b(?:async|await) +", "", text)
    text = re.sub(r"\w+", lambda word: twin.names.get(word[0], word[0]), text)
    left = _LEFT.search(text)
    if left is not None:
        raise ValueError(f"{left[0]!r} of {twin.source} has no blocking counterpart: add it here")
    return _ruff(_ruff(text, twin, "check", "--fix", "--quiet"), twin, "format")


def _ruff(text: str, twin: Twin, *arguments: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename"]
    command += [str(twin.target_path), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Write the modules, or compare with --check; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    is_check = parser.parse_args().check
    status = 0
    for twin in TWINS:
        text = blocking(twin.source_path.read_text(encoding="utf-8"), twin)
        target = twin.target_path
        if not is_check:
            target.write_text(text, encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != text:
            print(f"{twin.target} differs from {twin.source}; run `make client` and commit it")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
