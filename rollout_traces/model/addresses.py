"""Addresses of the inspector's pages: what a page shows is its query."""

from __future__ import annotations

from urllib.parse import urlencode, urlsplit


def page_address(inspector: str, **state: object) -> str:
    """The address of a page.

    Args:
        inspector: an inspector's address, or one of its pages, to which `state` is added.
        **state: what is shown; None is left out.
    """
    known = urlencode({name: value for name, value in state.items() if value is not None})
    return f"{inspector}&{known}" if urlsplit(inspector).query else f"{inspector}/?{known}"
