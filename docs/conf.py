"""How Sphinx builds the documentation site: `make docs-site`. A warning fails the build."""

from __future__ import annotations

from importlib.metadata import version as version_of

project = "sbp-spark"
version = release = version_of("sbp-spark")

extensions = ["myst_parser", "sphinxcontrib.mermaid"]
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
