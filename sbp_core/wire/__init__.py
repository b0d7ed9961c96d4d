"""Bytes <-> values: frames, headers, opcodes, status codes, checksums. Pure, no I/O."""
