"""The same prompts every time, for evaluation."""

from __future__ import annotations

import hashlib

from rollout_traces.selection.base import Selected, SelectionRequest


def fixed_prompts(request: SelectionRequest) -> list[Selected]:
    """Takes the prompts with the lowest hash of (prompt key, seed).

    As long as a prompt is handed over it keeps its place, so that a reader meets the same prompts at
    every evaluation. Each prompt gives its first sample before any gives its second.
    """
    keys = request.ledger.get("prompt_key").tolist()
    take = min(request.limit, len(keys))
    seen: dict[str, int] = {}
    places = []
    for row, key in enumerate(keys):
        prompt = f"row {row}" if key is None else str(key)
        sample = seen[prompt] = seen.get(prompt, -1) + 1
        places.append((sample, _place(prompt, request.seed), row))
    share = take / len(keys) if keys else 0.0
    return [Selected(row, "fixed_prompts", share) for _, _, row in sorted(places)[:take]]


def _place(prompt: str, seed: int) -> bytes:
    salt = (seed & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little")
    return hashlib.blake2b(prompt.encode("utf-8", "replace"), digest_size=8, salt=salt).digest()
