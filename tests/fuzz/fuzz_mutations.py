"""Damage that parsers fear: flipped bits, edited lengths, cuts, repeats, splices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

INPUT_BYTES_MAX = 64 * 1024
_EDITS = (1, 1, 1, 2, 3, 4, 8, 16)
_NUMBERS = (0, 1, 2, 4, 8, 15, 16, 2**7 - 1, 2**15 - 1, 2**16, 2**20, 2**24, 2**31 - 1, 2**63 - 1)

Edit = Callable[[Random, bytearray], None]


def mutate(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """Return a damaged member of `corpus`."""
    data = bytearray(rng.choice(corpus))
    if rng.random() < 0.15:
        other = rng.choice(corpus)
        data = data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]
    for _ in range(rng.choice(_EDITS)):
        if data:
            rng.choice(_ALL_EDITS)(rng, data)
    return bytes(data[:INPUT_BYTES_MAX])


def _flip_bit(rng: Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set_byte(rng: Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _edit_number(rng: Random, data: bytearray) -> None:
    """Replace a number, or move it a little, as lengths, counts and offsets are edited."""
    width = rng.choice((2, 3, 4, 4, 4, 8))
    order = rng.choice(("big", "little"))
    position = rng.randrange(len(data))
    if rng.random() < 0.5:
        position -= position % 4
    old = int.from_bytes(data[position : position + width], order)
    change = rng.choice((-8, -4, -1, 1, 4, 8, rng.randint(-300, 300)))
    new = rng.choice((old + change, rng.choice(_NUMBERS), -rng.choice(_NUMBERS), len(data)))
    new %= 1 << (8 * width)
    data[position : position + width] = new.to_bytes(width, order)[: len(data) - position]


def _cut(rng: Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def _delete(rng: Random, data: bytearray) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.choice((1, 4, rng.randint(1, 200)))]


def _insert(rng: Random, data: bytearray) -> None:
    start = rng.randrange(len(data))
    data[start:start] = rng.randbytes(rng.choice((1, 4, rng.randint(1, 60))))


def _repeat(rng: Random, data: bytearray) -> None:
    start = rng.randrange(len(data))
    part = data[start : start + rng.choice((4, 16, rng.randint(1, 2000)))]
    data[start:start] = part * rng.choice((1, 1, 2, 30))


def _copy_over(rng: Random, data: bytearray) -> None:
    start, target = rng.randrange(len(data)), rng.randrange(len(data))
    part = data[start : start + rng.choice((4, 8, rng.randint(1, 100)))]
    data[target : target + len(part)] = part


_ALL_EDITS: Sequence[Edit] = (
    _flip_bit,
    _flip_bit,
    _set_byte,
    _edit_number,
    _edit_number,
    _edit_number,
    _cut,
    _delete,
    _insert,
    _repeat,
    _copy_over,
)
