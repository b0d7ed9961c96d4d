"""A Python interpreter that has imported the servers already, and forks for every start.

The imports of a server take longer than its start. `tests.support.warm` starts this program once
and sends a request per process: JSON with the words behind the name of the interpreter, the
environment and the folder, and with it four descriptors: standard input, output and error, and a
socket. The socket gets the process id, and the exit code once the process has ended.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import socket
import sys
from importlib import import_module

IMPORTED = (
    "sbp_core.app",
    "sbp_core.cli.consume.record_reading",
    "sbp_core.cli.consume.writers",
    "sbp_core.cli.produce.sender",
    "sbp_core.settings.configuration",
    "sbp_core.cli.connect",
    "sbp_core.cli.consume.consume_command",
    "sbp_core.cli.group_lag",
    "sbp_core.cli.web",
    "sbp_core.cli.logs",
    "sbp_core.cli.produce.produce_command",
    "sbp_core.cli.reloading",
    "sbp_core.cli.server_commands",
    "sbp_core.cli.service_manager",
    "sbp_core.cli.stream_commands",
    "sbp_core.cluster",
    "sbp_core.processes",
    "sbp_core.server.allocator",
    "sbp_core.server.runtime",
    "uvloop",
)
REQUEST_BYTES_MAX = 1 << 17


def serve(control: socket.socket) -> None:
    """Fork for every request. Returns in each of the processes, and when the test run ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that watch
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until there is something to stop
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, 4)
        if not request:
            return
        if os.fork() == 0:
            break
        for each in descriptors:
            os.close(each)
    control.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, watched = descriptors
    pid = os.fork()
    if pid == 0:
        os.close(watched)
        become(streams, **json.loads(request))
        return
    for each in streams:
        os.close(each)
    watch(pid, socket.socket(fileno=watched))


def watch(pid: int, client: socket.socket) -> None:
    """Report the end of a process. The id stays that of the process until the test knows."""
    client.sendall(b"%d\n" % pid)
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    try:
        client.sendall(b"%d\n" % code)
        client.recv(1)
    finally:
        os._exit(0)


def become(streams: list[int], words: list[str], environ: dict[str, str], folder: str) -> None:
    """Be the interpreter with these words: `-m MODULE ...`, `-c CODE ...` or `FILE ...`."""
    os.setsid()
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    for number, name in enumerate(("stdin", "stdout", "stderr")):  # they know of what is there now
        former, mode = getattr(sys, name), "r" if number == 0 else "w"
        how = {"encoding": former.encoding, "errors": former.errors, "closefd": False}
        file = open(number, mode, **how)  # noqa: SIM115 - as long as the process
        file.reconfigure(line_buffering=number == 2 or file.isatty())
        setattr(sys, name, file)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    for name in IMPORTED:
        import_module(name)
    gc.collect()
    gc.freeze()  # no process copies what all of them share
    serve(socket.socket(fileno=int(sys.argv[1])))
