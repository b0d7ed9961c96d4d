"""Where results are kept, and folders that are gone after a run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

RESULTS: Final = Path(__file__).parents[1] / "results"


@contextmanager
def new_folder() -> Iterator[Path]:
    """Give an empty folder on the disk of the results."""
    RESULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=RESULTS, prefix="run-") as name:
        yield Path(name)
