"""Random damage to a file, as by a disk, a person or a program."""

from __future__ import annotations

import random


def damaged(data: bytes, rng: random.Random) -> tuple[str, bytes | None]:
    """Return what was done to a file, and what it is then; None if it is gone."""
    at = rng.randrange(len(data)) if data else 0
    what = rng.choice(("flip", "flip", "cut", "cut", "zeros", "grown", "gone", "emptied"))
    if what == "flip" and data:
        return f"bit flipped at {at}", data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + (
            data[at + 1 :]
        )
    if what == "cut":
        return f"cut to {at}", data[:at]
    if what == "zeros":
        length = min(rng.choice((1, 16, 512, 4096)), len(data) - at)
        return f"{length} zeros at {at}", data[:at] + bytes(length) + data[at + length :]
    if what == "grown":
        return "grown", data + rng.randbytes(rng.randrange(1, 64))
    return (what, None) if what == "gone" else ("emptied", b"")
