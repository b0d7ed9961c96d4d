"""Record batches that declare more records than they have."""

from sbp_core.records import encode_envelope

MILLION = 1_000_000


def lying_batch(encoding: str = "rows", count: int = MILLION, body: bytes = b"1234567") -> bytes:
    """A batch that no reader can decode, whatever its envelope declares."""
    return encode_envelope(
        [body],
        stream_id=0,
        record_count=count,
        base_timestamp_ms=0,
        encoding=encoding,
        schema_fingerprint="0" * 32 if encoding == "columns" else None,
    )
