"""How Sphinx builds the documentation site: `make docs-site`. A warning fails the build."""

from __future__ import annotations

import re
from importlib.metadata import version as version_of
from typing import Any

project = "sbp-spark"
version = release = version_of("sbp-spark")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinxcontrib.mermaid"]
exclude_patterns = ["conf.py"]
templates_path: list[str] = []

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["tables.css"]
html_title = f"{project} {version}"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False

myst_enable_extensions = ["colon_fence"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4

highlight_language = "none"  # a block without a language is a drawing or output
default_role = "code"  # docstrings put code between single backticks
add_module_names = False
autodoc_member_order = "groupwise"
autodoc_typehints_format = "short"
autodoc_default_options = {
    "members": True,
    "imported-members": True,
    "undoc-members": True,
    "inherited-members": "BaseException, Enum, ReprEnum, int, object, str, tuple",
}


def tidy_docstring(*event: Any) -> None:
    """Show a tree that a docstring draws as it is, and nothing that namedtuple makes up."""
    lines: list[str] = event[-1]
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()
    drawn = [index for index, line in enumerate(lines) if re.match(r"[| ]*[+]-- ", line)]
    if drawn:
        first, end = drawn[0] - 1, drawn[-1] + 1
        lines[first:end] = ["::", "", *(f"    {line}" for line in lines[first:end])]


def setup(app: Any) -> None:
    """Connect what this file does to Sphinx."""
    app.connect("autodoc-process-docstring", tidy_docstring)
