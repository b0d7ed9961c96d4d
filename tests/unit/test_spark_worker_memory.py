"""A worker settles once, and only where Spark runs tasks; what it frees then is kept."""

import gc
import os
import platform
import subprocess
import sys
from types import ModuleType

import pytest

from sbp_spark import client_pool
from sbp_spark.spark_internals import worker_process
from tests.support.scripted_client import sink_options

IS_GLIBC = platform.libc_ver()[0] == "glibc"
FREED_BYTES = 8 << 20
KEPT_OF_FREED = f"""
import os
from sbp_spark.spark_internals.worker_process import keep_freed_memory

def anonymous():
    with open("/proc/self/statm") as file:
        pages = [int(each) for each in file.read().split()]
    return (pages[1] - pages[2]) * os.sysconf("SC_PAGE_SIZE")  # the kernel may drop pages of files

keep_freed_memory()
before = anonymous()
block = bytearray(b"x") * {FREED_BYTES}
del block
print(anonymous() - before)
"""


@pytest.fixture
def calls(monkeypatch):
    """Calls to the collector and to the C library, replaced by stubs that do nothing."""
    made = []
    for name in ("collect", "freeze"):
        monkeypatch.setattr(gc, name, lambda name=name: made.append(name))
    monkeypatch.setattr(worker_process, "keep_freed_memory", lambda: made.append("keep"))
    monkeypatch.setattr(worker_process, "_settled", {})
    return made


@pytest.fixture
def worker(monkeypatch):
    """This process is one of Spark's workers."""
    monkeypatch.setattr(worker_process, "is_worker", lambda: True)


def test_a_worker_settles_once(worker, monkeypatch, calls):
    worker_process.settle()
    worker_process.settle()
    assert calls == ["collect", "freeze", "keep"]
    monkeypatch.setattr("os.getpid", lambda: -1)  # a child of the worker
    worker_process.settle()
    assert calls == ["collect", "freeze", "keep"] * 2


def test_a_worker_settles_again_when_much_was_loaded(worker, monkeypatch, calls):
    worker_process.settle()
    for number in range(worker_process.FURTHER_MODULES):
        assert calls == ["collect", "freeze", "keep"]
        monkeypatch.setitem(sys.modules, f"further{number}", ModuleType(f"further{number}"))
        worker_process.settle()
    assert calls == ["collect", "freeze", "keep"] * 2


def test_a_process_that_is_no_worker_is_left_alone(monkeypatch, calls):
    monkeypatch.setattr(worker_process, "is_worker", lambda: False)
    worker_process.settle()
    assert calls == []


def test_a_worker_settles_before_it_gets_a_client(monkeypatch):
    done = []
    monkeypatch.setattr(client_pool, "_clients", {})
    monkeypatch.setattr(client_pool, "settle", lambda: done.append("settled"))
    monkeypatch.setattr(client_pool, "Client", lambda *_, **__: done.append("made"))
    servers = sink_options().servers
    for _ in range(2):
        client_pool.client_for(servers, client_pool.Patience.RUNNING)
    assert done == ["settled", "made", "settled"]


@pytest.mark.skipif(not IS_GLIBC, reason="other C libraries are left alone")
def test_freed_memory_is_kept():
    assert kept_of_freed({}) > FREED_BYTES * 0.5  # the block may begin in memory freed before


@pytest.mark.skipif(not IS_GLIBC, reason="other C libraries are left alone")
def test_the_environment_overrides_the_settings():
    assert kept_of_freed({"MALLOC_TRIM_THRESHOLD_": "131072"}) < FREED_BYTES * 0.1


def test_a_c_library_without_the_call_is_left_alone(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    worker_process.keep_freed_memory()


def kept_of_freed(settings):
    """Return the bytes that a process has more after it got and freed `FREED_BYTES`."""
    kept = {k: v for k, v in os.environ.items() if k not in worker_process.MALLOC_SETTINGS}
    command = [sys.executable, "-c", KEPT_OF_FREED]
    result = subprocess.run(command, env=kept | settings, stdout=subprocess.PIPE, check=True)
    return int(result.stdout)
