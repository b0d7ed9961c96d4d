"""The memory allocator of a server process."""

from __future__ import annotations

import ctypes
from typing import Final

_M_ARENA_MAX: Final = -8
"""The parameter of `mallopt`, as <malloc.h> of glibc has it."""


def use_one_arena() -> None:
    """Let all threads of this process share one arena of malloc. Call it before threads start.

    By default glibc gives each thread an arena of its own, which keeps what the thread has freed,
    up to 64 MiB. The threads that read and write files hold buffers of many megabytes, one after
    the other. So after a burst, such as the copies for a server that was down, each of these
    arenas kept 4 to 16 MiB that no other thread could use. The threads seldom wait for the one
    arena: they hold Python's lock while they allocate. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
