"""A worker settles once, and only where Spark runs tasks; what it frees then is kept."""

import os
import platform
import subprocess
import sys
from functools import partial
from types import ModuleType

import pytest

from sbp_spark.client_pool import ClientPool, Patience
from sbp_spark.spark_internals.worker_process import (
    FURTHER_MODULES,
    MALLOC_SETTINGS,
    Settler,
    keep_freed_memory,
)
from tests.support.scripted_client import sink_options

IS_GLIBC = platform.libc_ver()[0] == "glibc"
FREED_BYTES = 8 << 20
KEPT_OF_FREED = f"""
import os
from sbp_spark.spark_internals.worker_process import Settler

def anonymous():
    with open("/proc/self/statm") as file:
        pages = [int(each) for each in file.read().split()]
    return (pages[1] - pages[2]) * os.sysconf("SC_PAGE_SIZE")  # the kernel may drop pages of files

Settler(is_worker=lambda: True).settle()
before = anonymous()
block = bytearray(b"x") * {FREED_BYTES}
del block
print(anonymous() - before)
"""


def test_a_worker_settles_once():
    calls, pid = [], [1]
    settler = Settler(partial(calls.append, "settled"), is_worker=lambda: True, pid=lambda: pid[0])
    settler.settle()
    settler.settle()
    assert calls == ["settled"]
    pid[0] = 2  # a child of the worker
    settler.settle()
    assert calls == ["settled"] * 2


def test_a_worker_settles_again_when_much_was_loaded(monkeypatch):
    calls = []
    settler = Settler(partial(calls.append, "settled"), is_worker=lambda: True)
    settler.settle()
    for number in range(FURTHER_MODULES):
        assert calls == ["settled"]
        monkeypatch.setitem(sys.modules, f"further{number}", ModuleType(f"further{number}"))
        settler.settle()
    assert calls == ["settled"] * 2


def test_a_process_that_is_no_worker_is_left_alone():
    calls = []
    Settler(partial(calls.append, "settled"), is_worker=lambda: False).settle()
    assert calls == []


def test_a_worker_exempts_what_is_loaded_from_collections():
    program = """
import gc
from sbp_spark.spark_internals.worker_process import Settler

Settler(is_worker=lambda: True).settle()
print(gc.get_freeze_count())
"""
    assert printed(program, dict(os.environ)) > 1_000


def test_a_worker_settles_before_it_gets_a_client():
    done = []
    pool = ClientPool(lambda *_: done.append("made"), lambda: done.append("settled"))
    servers = sink_options().servers
    for _ in range(2):
        pool.client_for(servers, Patience.RUNNING)
    assert done == ["settled", "made", "settled"]


@pytest.mark.skipif(not IS_GLIBC, reason="other C libraries are left alone")
def test_freed_memory_is_kept():
    assert kept_of_freed({}) > FREED_BYTES * 0.5  # the block may begin in memory freed before


@pytest.mark.skipif(not IS_GLIBC, reason="other C libraries are left alone")
def test_the_environment_overrides_the_settings():
    assert kept_of_freed({"MALLOC_TRIM_THRESHOLD_": "131072"}) < FREED_BYTES * 0.1


def test_a_c_library_without_the_call_is_left_alone():
    keep_freed_memory(lambda _: object())


def kept_of_freed(settings):
    """Return the bytes that a process has more after it got and freed `FREED_BYTES`."""
    kept = {k: v for k, v in os.environ.items() if k not in MALLOC_SETTINGS}
    return printed(KEPT_OF_FREED, kept | settings)


def printed(program, environment):
    """Return the number that a program prints."""
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return int(result.stdout)
