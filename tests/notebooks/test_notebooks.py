"""Notebooks run, and are committed with the outputs of a run: GitHub shows them."""

import re
import runpy
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
BYTES_MAX = 200_000
ABSOLUTE_PATH = re.compile(r"(?<![\w/:.-])/[\w.-]+/[\w.-]+")

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def load(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts(cells):
    """The texts that cells print or show."""
    for output in (output for cell in cells for output in cell.outputs):
        yield output.get("text", "")
        yield from (text for kind, text in output.get("data", {}).items() if "image" not in kind)


def kinds(cells):
    """The forms of the outputs of each cell."""
    return {
        cell.id: {(output.output_type, *sorted(output.get("data", {}))) for output in cell.outputs}
        for cell in cells
    }


def faults(notebook):
    """The reasons why a notebook cannot be committed."""
    cells = code_cells(notebook)
    if [cell.execution_count for cell in cells] != list(range(1, len(cells) + 1)):
        yield "not every cell was executed, in order"
    if any(output.output_type == "error" for cell in cells for output in cell.outputs):
        yield "a cell failed"
    yield from (
        f"{path[0]} is of one machine" for path in map(ABSOLUTE_PATH.search, texts(cells)) if path
    )


def test_there_are_notebooks():
    assert [path.stem for path in NOTEBOOKS] == [
        "01_quickstart",
        "02_typed_streams",
        "03_operations",
        "04_exactly_once",
    ]


@each_notebook
def test_a_notebook_is_committed_with_the_outputs_of_a_run(path):
    notebook = load(path)
    nbformat.validate(notebook)
    assert list(faults(notebook)) == []
    assert path.stat().st_size < BYTES_MAX


@pytest.mark.parametrize(
    ("count", "output", "fault"),
    [
        (None, {"output_type": "stream", "name": "stdout", "text": "5"}, "not every cell"),
        (1, {"output_type": "error", "ename": "E", "evalue": "", "traceback": []}, "failed"),
        (1, {"output_type": "stream", "name": "stdout", "text": "in '/srv/a'"}, "/srv/a is of"),
    ],
)
def test_a_notebook_that_was_not_executed_well_is_found(count, output, fault):
    cell = nbformat.v4.new_code_cell("2 + 3", execution_count=count)
    cell.outputs = [nbformat.from_dict(output)]
    (found,) = faults(nbformat.v4.new_notebook(cells=[cell]))
    assert fault in found


@each_notebook
def test_a_notebook_names_no_kernel_of_somebodys_own(path):
    assert load(path).metadata == runpy.run_path(FOLDER / "execute.py")["METADATA"]


@pytest.mark.notebooks
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@each_notebook
def test_a_notebook_runs_and_shows_what_is_committed(path):
    executed = runpy.run_path(FOLDER / "execute.py")["execute"](path)
    cells = code_cells(executed)
    assert kinds(cells) == kinds(code_cells(load(path)))
    assert len([kind for kind in kinds(cells)["plot"] if "image/png" in kind]) == 1
