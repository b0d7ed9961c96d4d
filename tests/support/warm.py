"""Processes of this interpreter that start without its imports: see `programs/warm.py`.

Settings that modules read while they load, such as failpoints, need a new interpreter instead.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

from sbp_core.cluster import LocalCluster
from sbp_core.failpoints import VARIABLE
from sbp_core.processes import COMMAND
from tests.support.programs import program

Stream = int | IO[Any] | None
"""As `subprocess.Popen` takes it."""

_FORKING = threading.Lock()
_MADE: list[socket.socket] = []
"""The connection to the program that forks, once a process was started."""


class WarmProcess:
    """A process like a `subprocess.Popen`, as far as tests need it. It leads a session.

    `command` begins with the interpreter of the tests.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
        text: bool = False,
    ) -> None:
        assert command[0] == sys.executable
        self.args = [*map(str, command)]
        self.returncode: int | None = None
        self._is_text = text
        self.stdin: Any = None
        self.stdout: Any = None
        self.stderr: Any = None
        request = {
            "words": self.args[1:],
            "environ": dict(os.environ),
            "folder": str(Path.cwd()),
        }
        with ExitStack() as sent:
            streams: list[int] = []
            for name, given in {"stdin": stdin, "stdout": stdout, "stderr": stderr}.items():
                streams.append(sent.enter_context(self._opened(name, given, streams)))
            self._watching, watched = socket.socketpair()
            sent.callback(watched.close)
            with _FORKING:
                data = json.dumps(request).encode()
                socket.send_fds(_forking(), [data], [*streams, watched.fileno()])
        self._answers = self._watching.makefile("rb", buffering=0)
        self.pid = int(self._answers.readline())

    @contextmanager
    def _opened(self, name: str, given: Stream, streams: list[int]) -> Iterator[int]:
        """Give a stream to the process; keep the other end of a pipe."""
        if given == subprocess.PIPE:
            reading, writing = os.pipe()
            is_input = name == "stdin"
            ours, theirs = (writing, reading) if is_input else (reading, writing)
            mode = ("w" if is_input else "r") + ("" if self._is_text else "b")
            setattr(self, name, os.fdopen(ours, mode))
            yield theirs
            os.close(theirs)
        elif given == subprocess.STDOUT:
            yield streams[1]
        elif given == subprocess.DEVNULL:
            with open(os.devnull, "r+b", buffering=0) as file:
                yield file.fileno()
        elif given is None:
            yield len(streams)
        else:
            yield given if isinstance(given, int) else given.fileno()

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises TimeoutExpired."""
        if self.returncode is None:
            self._watching.settimeout(None if timeout is None else max(timeout, 0.001))
            try:
                code = self._watching.recv(16)
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self.returncode = int(code)
            self._answers.close()
            self._watching.close()
        return self.returncode

    def communicate(self, given: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write what is `given`, read both outputs to their ends, and wait for the end.

        Raises TimeoutExpired.
        """
        files = [each for each in (self.stdout, self.stderr) if each and not each.closed]
        with ThreadPoolExecutor(3) as threads:
            found = [threads.submit(each.read) for each in files]
            if self.stdin is not None and not self.stdin.closed:
                threads.submit(self._give, given)
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        read = {id(file): each.result() for file, each in zip(files, found, strict=True)}
        for each in files:
            each.close()
        return read.get(id(self.stdout)), read.get(id(self.stderr))

    def _give(self, given: Any) -> None:
        with suppress(BrokenPipeError), self.stdin:
            if given is not None:
                self.stdin.write(given)

    def send_signal(self, number: int) -> None:
        """Send a signal, if the process runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the process to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self.stdout, self.stderr, self.stdin):
            if each is not None:
                each.close()
        self.wait()


def sbp(*words: str | Path, **streams: Any) -> WarmProcess:
    """Start `sbp` with these words."""
    return WarmProcess([*COMMAND, *words], **streams)


class WarmCluster(LocalCluster):
    """`sbp serve` as a child process that starts in a fraction of a second."""

    def _popen(self, command: Sequence[str], log: IO[bytes]) -> Any:
        if list(command[: len(COMMAND)]) != COMMAND or VARIABLE in os.environ:
            return super()._popen(command, log)
        return WarmProcess(command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)


def _forking() -> socket.socket:
    """Return the connection to the program that forks. It is started at the first call."""
    if not _MADE:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = subprocess.Popen(
            program("warm", theirs.fileno()),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a fork has one thread only
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        _MADE.append(ours)
        atexit.register(process.wait)
        atexit.register(ours.close)  # called first
    return _MADE[0]
