"""A worker's memory is tuned where its user asks, once, and only where Spark runs tasks."""

import os
import platform
import subprocess
import sys

import pytest

from sbp_spark.client_pool import ClientPool, Patience
from tests.support.scripted_client import sink_options

FREED_BYTES = 8 << 20
PROGRAM = f"""
import gc, os, sys
from sbp_spark.spark_internals import worker_process

def anonymous():
    with open("/proc/self/statm") as file:
        pages = [int(each) for each in file.read().split()]
    return (pages[1] - pages[2]) * os.sysconf("SC_PAGE_SIZE")  # the kernel may drop pages of files

worker_process.is_worker = lambda: "worker" in sys.argv
worker_process.tune_worker()
before = anonymous()
block = bytearray(b"x") * {FREED_BYTES}
del block
print(gc.get_freeze_count(), anonymous() - before)
"""


def frozen_and_kept(*words, **environ):
    """How many objects a process does not collect, and how many of the freed bytes it keeps."""
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(
        command, env={**os.environ, **environ}, stdout=subprocess.PIPE, check=True
    )
    return [int(each) for each in done.stdout.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
def test_memory_is_tuned_where_that_is_asked_for():
    frozen, kept = frozen_and_kept("worker", SBP_TUNE_WORKERS="1")
    assert frozen > 1_000
    assert kept > FREED_BYTES * 0.5  # the block may begin in memory freed before


@pytest.mark.parametrize(("words", "value"), [((), "1"), (("worker",), "0")])
def test_other_processes_are_left_alone(words, value):
    frozen, kept = frozen_and_kept(*words, SBP_TUNE_WORKERS=value)
    assert frozen == 0
    assert kept < FREED_BYTES * 0.1


def test_a_worker_is_tuned_before_it_gets_a_client():
    done = []
    pool = ClientPool(lambda *_: done.append("made"), lambda: done.append("tuned"))
    for _ in range(2):
        pool.client_for(sink_options().servers, Patience.RUNNING)
    assert done == ["tuned", "made", "tuned"]
