"""This process's client of the Hub, led to another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def hub_elsewhere(monkeypatch) -> Iterator[Callable[[str], None]]:
    """Has this process's `huggingface_hub` ask at another address, and as it did before once the test is over."""
    import huggingface_hub
    from huggingface_hub.utils import _http

    monkeypatch.setattr(_http, "_GLOBAL_CLIENT_FACTORY", _http._GLOBAL_CLIENT_FACTORY)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    yield lambda address: monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    huggingface_hub.close_session()
