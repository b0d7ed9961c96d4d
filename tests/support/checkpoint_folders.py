"""Checkpoint folders as Spark writes them, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

METADATA = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})


def sbp_offset(
    *, stalled: dict[str, int] | None = None, left_out: str | None = None, **streams: Any
) -> dict[str, Any]:
    """An offset: by stream id (`s1`) the next offset, or several fields."""
    texts = []
    for key, at in streams.items():
        fields = dict(at) if isinstance(at, dict) else {"next": at}
        more = "".join(f",{name}={fields[name]}" for name in sorted(fields) if name != "next")
        texts.append(f"{key.removeprefix('s')}={fields['next']}@7{more}")
    told: dict[str, Any] = {"stalled": stalled} if stalled else {}
    told |= {"left_out": left_out} if left_out else {}
    return {**told, "streams": " ".join(texts), "version": 3 if left_out else 2}


def write_checkpoint(folder: Path, *batches: Any, committed: int, first: int = 0) -> Path:
    """A checkpoint with these micro-batches, of which `committed` are committed.

    Each is the offset of one source, a list of several, or a dict of named ones: offset log v2.
    """
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": "the-query"}))
    for number, batch in enumerate(batches, first):
        if isinstance(batch, dict) and "version" not in batch:
            lines = ["v2", METADATA, *(f"{name}:{json.dumps(batch[name])}" for name in batch)]
        else:
            sources = batch if isinstance(batch, list) else [batch]
            texts = ["-" if each is None else json.dumps(each) for each in sources]
            lines = ["v1", METADATA, *texts]
        write(folder / "offsets", number, "\n".join(lines))
        if number < first + committed:
            write(folder / "commits", number, 'v1\n{"nextBatchWatermarkMs":0}')
    return folder


def write(folder: Path, number: int, text: str) -> None:
    """A file and its checksum."""
    (folder / str(number)).write_text(text)
    (folder / f".{number}.crc").write_bytes(b"crc")


def everything(folder: Path) -> dict[str, bytes]:
    """Return the content of each file below a folder, by relative path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def clear_unborn(folder: Path) -> None:
    """Remove what is left of a first micro-batch whose driver was killed while it noted its end.

    Spark refuses such a folder for ever (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY), although
    nothing has been read for it yet.
    """
    files = list((folder / "offsets").glob("*"))
    if not any(file.name.isdecimal() for file in files):
        for file in files:
            file.unlink()
