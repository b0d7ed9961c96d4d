"""Manifests and chunks: what is written is read, and nothing that was changed is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.backup.format import (
    BackupError,
    ChunkRef,
    ChunkWriter,
    CursorEntry,
    DecisionEntry,
    GrantEntry,
    Manifest,
    SchemaEntry,
    StreamEntry,
    batches_of,
    decode_manifest,
    encode_manifest,
    manifest_path,
    maybe_backup_id,
)
from sbp_core.records import write_base_offset
from tests.support.cluster import rows_batch

INTEGERS = st.integers(0, 2**63 - 1)
TEXTS = st.text(max_size=8)
CHUNKS = st.builds(ChunkRef, INTEGERS, INTEGERS, INTEGERS, st.text("0123456789abcdef", min_size=16))


def some(entry):
    """Up to three entries with any values."""
    return st.lists(st.builds(entry), max_size=3).map(tuple)


for kind, strategy in ((int, INTEGERS), (str, TEXTS), (bytes, st.binary(max_size=8))):
    st.register_type_strategy(kind, strategy)
st.register_type_strategy(ChunkRef, CHUNKS)
MANIFESTS = st.builds(
    Manifest,
    streams=some(StreamEntry),
    schemas=some(SchemaEntry),
    cursors=some(CursorEntry),
    grants=some(GrantEntry),
    decisions=some(DecisionEntry),
    deleted=st.lists(TEXTS, max_size=2).map(tuple),
)


@st.composite
def batches(draw):
    """Batches that follow each other: (base offset, end offset, bytes) each."""
    offset = draw(st.integers(0, 2**40))
    made = []
    lists = st.lists(st.binary(max_size=9), min_size=1, max_size=4)
    for values in draw(st.lists(lists, min_size=1)):
        batch = bytearray(rows_batch(values, 7))
        write_base_offset(batch, offset)
        made.append((offset, offset + len(values), bytes(batch)))
        offset += len(values)
    return made


def written(content):
    writer = ChunkWriter()
    for start, end, batch in content:
        writer.add(batch, start, end)
    return writer.finish()


@given(MANIFESTS)
def test_a_manifest_is_read_as_it_was_written(manifest):
    assert decode_manifest(encode_manifest(manifest), "m") == manifest


@given(MANIFESTS, st.data())
def test_a_manifest_that_was_changed_is_refused(manifest, data):
    whole = bytearray(encode_manifest(manifest))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BackupError):
        decode_manifest(bytes(whole), "m")


@given(batches())
def test_a_chunk_has_the_batches_that_were_added(content):
    chunk, data = written(content)
    assert (chunk.start, chunk.end, chunk.size) == (content[0][0], content[-1][1], len(data))
    assert batches_of(data, chunk, "c") == content


@given(batches(), st.data())
def test_a_chunk_that_was_changed_is_refused(content, data):
    chunk, whole = written(content)
    changed = bytearray(whole)
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at] ^= data.draw(st.integers(1, 255))
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    for damaged in (bytes(changed), cut):
        with pytest.raises(BackupError, match=r"^c is damaged: records"):
            batches_of(damaged, chunk, "c")


@given(batches())
def test_a_gap_between_batches_is_refused(content):
    writer = ChunkWriter()
    start, end, batch = content[0]
    writer.add(batch, start, end)
    with pytest.raises(BackupError, match="records are missing in between"):
        writer.add(batch, end + 1, end + 2)


def test_a_manifest_of_another_version_is_refused_with_the_remedy():
    with pytest.raises(BackupError, match="reads 1: use the release that wrote it"):
        decode_manifest(b'{"format":"sbp-backup","version":2,"sha256":""}\n{}', "m")
    with pytest.raises(BackupError, match="no manifest"):
        decode_manifest(b'{"format":"x","version":1,"sha256":""}\n{}', "m")


def test_the_path_of_a_manifest_names_its_backup():
    assert maybe_backup_id(manifest_path("b-1")) == "b-1"
    assert maybe_backup_id("chunks/1-2/3") is None
    assert maybe_backup_id("backups/b-1/other") is None
