"""Asking a running inspector to move its page."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from rollout_traces.errors import StoreError
from rollout_traces.inspector.api.models import OpenedAnswer


def open_elsewhere(address: str, token: str | None, state: Mapping[str, str]) -> OpenedAnswer:
    """Sends a state to an inspector.

    Args:
        address: of the inspector, such as `http://127.0.0.1:7861`.
        token: its token.
        state: what its address would name.

    Raises:
        StoreError: it does not answer, or refuses.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx.post(
            f"{address.rstrip('/')}/api/v1/open", json={"state": dict(state)}, headers=headers, timeout=10
        )
    except httpx.HTTPError as error:
        raise StoreError(f"the inspector at {address} does not answer ({error}).") from error
    if answer.status_code != 200:
        raise StoreError(f"the inspector at {address} refuses ({answer.status_code}): {answer.text[:300]}")
    return OpenedAnswer()
