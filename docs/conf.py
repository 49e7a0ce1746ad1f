"""The docs as a site: `make site`."""

from importlib.metadata import version as version_of

project = "rollout-traces"
author = "The rollout-traces authors"
release = version = version_of("rollout-traces")
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["notebooks"]
html_theme = "furo"
html_title = f"rollout-traces {version}"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
html_favicon = "../rollout_traces/inspector/lib/icon.svg"
