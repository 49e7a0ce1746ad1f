"""A run as a folder of files that any web server serves: the inspector's own pages over answers written down."""

from __future__ import annotations

from rollout_traces.inspector.site.contents import SiteOf
from rollout_traces.inspector.site.writing import write_site

__all__ = ["SiteOf", "write_site"]
