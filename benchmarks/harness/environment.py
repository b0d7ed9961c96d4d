"""The environment of a run: the machine, its disk and loopback, and versions."""

from __future__ import annotations

import mmap
import os
import platform
import socket
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow as pa
import pyspark

_MIB: Final = 1024 * 1024
_FSYNCS: Final = 32
_DISK_WRITE_BYTES: Final = 64 * _MIB
_LOOPBACK_BYTES: Final = 256 * _MIB
_MEMORY_BYTES: Final = 256 * _MIB


def environment(folder: Path) -> dict[str, Any]:
    """Return what the figures depend on; the disk is the one below `folder`."""
    fsync_ms, disk_mb_per_s = _disk(folder / "disk-probe")
    return {
        "cpu_count": os.cpu_count(),
        "machine": platform.machine(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "spark": pyspark.__version__,
        "pyarrow": pa.__version__,
        "disk_fsync_ms": round(fsync_ms, 3),
        "disk_write_mb_per_s": round(disk_mb_per_s),
        "loopback_mb_per_s": round(_loopback()),
        "new_memory_mb_per_s": round(_new_memory()),
    }


def _disk(probe: Path) -> tuple[float, float]:
    """Return the median ms of a 4 KiB write with fdatasync, and the MB/s of a large one."""
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        syncs = [_write_seconds(descriptor, bytes(4096)) for _ in range(_FSYNCS)]
        seconds = _write_seconds(descriptor, os.urandom(_MIB), times=_DISK_WRITE_BYTES // _MIB)
    finally:
        os.close(descriptor)
        probe.unlink()
    return median(syncs) * 1000, _DISK_WRITE_BYTES / seconds / 1e6


def _write_seconds(descriptor: int, data: bytes, *, times: int = 1) -> float:
    started = time.perf_counter()
    for _ in range(times):
        os.write(descriptor, data)
    os.fdatasync(descriptor)
    return time.perf_counter() - started


def _new_memory() -> float:
    """Return the MB/s of writing to memory that the system has to give first.

    Writing to files needs such memory, too. Below 500, a virtual machine most likely gets
    it from its host, whom it gave it back to: then figures say little, see
    docs/explanation/benchmarks.md.
    """
    block = bytes(_MIB)
    with mmap.mmap(-1, _MEMORY_BYTES) as memory:
        started = time.perf_counter()
        for _ in range(_MEMORY_BYTES // _MIB):
            memory.write(block)
        seconds = time.perf_counter() - started
    return _MEMORY_BYTES / seconds / 1e6


def _loopback() -> float:
    """Return the MB/s of plain bytes over a connection of this machine with itself."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=_send, args=(server.getsockname(),))
        sender.start()
        connection, _ = server.accept()
        buffer = bytearray(_MIB)
        byte_count = 0
        started = time.perf_counter()
        with connection:
            while received := connection.recv_into(buffer):
                byte_count += received
        seconds = time.perf_counter() - started
        sender.join()
    return byte_count / seconds / 1e6


def _send(address: tuple[str, int]) -> None:
    block = bytes(_MIB)
    with socket.create_connection(address) as connection:
        for _ in range(_LOOPBACK_BYTES // _MIB):
            connection.sendall(block)
