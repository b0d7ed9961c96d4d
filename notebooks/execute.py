"""Execute notebooks and keep their outputs, which GitHub shows: `make notebooks`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER: Final = Path(__file__).parent
CELL_TIMEOUT_S: Final = 120
METADATA: Final = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
"""Those of any kernel: what a run adds differs from one machine to the next."""


def execute(path: Path) -> NotebookNode:
    """Return a notebook with new outputs. Raises CellExecutionError at the first that fails."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(FOLDER)}},
    ).execute()
    notebook.metadata = METADATA
    return notebook


if __name__ == "__main__":
    for each in map(Path, sys.argv[1:]):
        print(each, flush=True)
        nbformat.write(execute(each), each)
