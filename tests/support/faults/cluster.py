"""`sbp serve` as a child process that is made to fail, and the places where it can be."""

from __future__ import annotations

import ast
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import sbp_core
from sbp_core.errors import SbpError
from sbp_core.failpoints import VARIABLE
from tests.support.warm import WarmCluster

ALTERED_SERVE = Path(__file__).parents[1] / "programs" / "altered_serve.py"
END_SECONDS = 90
START_TIMEOUT_MS = 120_000
SETTINGS = {"range_server": {"disk_free_floor_bytes": 0, "retention_check_interval_ms": 100}}

Settings = Mapping[str, Mapping[str, int | str]]
"""By section and key of the configuration file."""


class FaultCluster(WarmCluster):
    """A server with small segments, or other `alterations` of altered_serve.py.

    It fills its disk to the last byte, so that the disk fails, and frees what is dead of its log
    all the time, unless `settings` say otherwise.
    Its data is in `data_dir`, all else in `folder`, where the data is too by default.
    `wrapper` are words to put before the command of the next start, such as those of strace.
    """

    def __init__(
        self,
        folder: Path,
        *,
        data_dir: Path | None = None,
        alterations: Sequence[str] = ("small-segments",),
        settings: Settings | None = None,
        range_servers: int = 1,
    ) -> None:
        config = folder / "server.toml"
        config.write_text(_toml({**SETTINGS, **(settings or {})}), encoding="utf-8")
        super().__init__(
            data_dir or folder / "data",
            range_servers=range_servers,
            options=["--config", str(config)],
            start_timeout_ms=START_TIMEOUT_MS,
        )
        self.log_path = folder / "serve.log"
        self._ready_path = folder / "ready.json"
        self.wrapper: tuple[str, ...] = ()
        self._alterations = tuple(alterations)
        self._failpoints = ""
        self._exit_code = 0

    def start_armed(self, failpoints: str) -> bool:
        """Start with failpoints; whether it came to serve before one of them ended it."""
        fired_before = self.fired_count
        self._failpoints = failpoints
        try:
            self.start()
        except SbpError:
            if self.fired_count == fired_before:
                raise
            return False
        finally:
            self._failpoints = ""
        return True

    def run_to_end(self) -> int:
        """Start, wait until it ends by itself, serving or not yet; return its exit code."""
        try:
            self.start()
        except SbpError:
            return self._exit_code
        return self.wait_for_end()

    def run_armed(self, failpoints: str) -> int:
        """Start with failpoints, wait until one ends the process; return its exit code."""
        return self.wait_for_end() if self.start_armed(failpoints) else self._exit_code

    def leave_unfinished_writes(self) -> None:
        """Leave of a dead server's log what interrupted writes of a group and an index leave."""
        segment = max(self.data_dir.glob("range-server-0/log/*.log"))
        with segment.open("ab") as file:
            file.write(b"torn")
        segment.with_suffix(".idx.tmp").touch()

    @property
    def log_folder(self) -> Path:
        """Where the log of the first range server is."""
        return self.data_dir / "range-server-0" / "log"

    @property
    def listening_port(self) -> int:
        """The port of the first range server, whatever it advertises."""
        return self._first_port + 1

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def fired_count(self) -> int:
        """How often a failpoint fired, since the first start."""
        return len(self.fired_names)

    @property
    def fired_names(self) -> list[str]:
        """Which failpoints fired, since the first start."""
        return re.findall(r"^failpoint (\S+):", self.log, re.MULTILINE)

    @property
    def log(self) -> str:
        """The output of the server since the first start."""
        if not self.log_path.exists():
            return ""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def wait_for_end(self, seconds: float = END_SECONDS) -> int:
        """Wait until the process ends by itself; return its exit code."""
        deadline = time.monotonic() + seconds
        while self.is_alive:
            assert time.monotonic() < deadline, f"still alive after {seconds} s\n{self.log}"
            time.sleep(0.01)
        return self._reap(signal.SIGKILL)

    def freeze(self) -> None:
        """Stop the process for ever; return when it sends nothing more."""
        os.kill(self.pid, signal.SIGSTOP)
        deadline = time.monotonic() + END_SECONDS
        while _state_of(self.pid) != "T":
            assert time.monotonic() < deadline
            time.sleep(0.0005)

    def end(self) -> None:
        """Kill what still runs; for the end of a test whose server may be dead already."""
        if self._process is not None:
            self.kill()

    def _reap(self, signal_number: signal.Signals) -> int:
        self._exit_code = super()._reap(signal_number)
        return self._exit_code

    def _command(self, first_port: int) -> list[str]:
        command = super()._command(first_port)
        if self._alterations:
            command[1 : command.index("serve")] = [str(ALTERED_SERVE), ",".join(self._alterations)]
        armed = ["env", f"{VARIABLE}={self._failpoints}"] if self._failpoints else []
        return [*armed, *self.wrapper, *command]


def _state_of(pid: int) -> str:
    """The letter of proc(5) for what the first thread of a process does: all answers are its."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][0]


def _toml(settings: Settings) -> str:
    lines = []
    for section, keys in settings.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {value!r}".replace("'", '"') for key, value in keys.items()]
    return "\n".join(lines)


def failpoint_names() -> list[str]:
    """Every failpoint in the sources of the servers."""
    names = set()
    for path in Path(sbp_core.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "failpoint":
                names.add(ast.literal_eval(node.args[0]))
    return sorted(names)
