"""Where the images of a rollout stand in its turns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rollout_traces.trace.images import IMAGES_KEY

_PADS = "|".join(
    map(
        re.escape,
        (
            *("<|image_pad|>", "<|image|>", "<image>", "<image_soft_token>", "<IMG_CONTEXT>", "<|imgpad|>"),
            *("[IMG]", "<|media_pad|>", "<|placeholder|>", "<im_patch>", "<|patch|>"),
        ),
    )
)
PLACE = re.compile(
    rf"(?:(?:<\|vision_start\|>|<start_of_image>|<img>|<\|media_begin\|>)\s*)?(?:{_PADS})"
    rf"(?:\s*(?:{_PADS}|\[IMG_BREAK\]))*(?:\s*(?:\[IMG_END\]|<\|vision_end\|>|<end_of_image>|</img>|<\|media_end\|>))?"
)
"""A run of the tokens that stand for one image, in the templates of common vision models."""
MARK = "\ufffc"
"""Stands in a turn's content where an image is to be drawn."""


def placed(payload: dict[str, Any], details: Mapping[str, Any]) -> dict[str, Any]:
    """A rollout's payload with its images.

    Args:
        payload: of `rollout_payload`; its turns' contents may be changed.
        details: of the trace.

    Returns:
        The payload with `images`, one `{left_out}` each, and in turns that hold any `images`: their numbers, `MARK`
        standing in the content for those whose tokens it holds. A warning says where places and images do not match.
    """
    stored = details.get(IMAGES_KEY)
    if not isinstance(stored, list) or not stored:
        return payload
    images = [{"left_out": _left_out(each)} for each in stored]
    places = _places(payload["turns"], payload["raw"])
    found = sum(places)
    warnings = list(payload["warnings"])
    if found != len(images):
        warnings.append(
            f"{len(images)} images were logged and {found} places for one are in its text: they are drawn in order, "
            "those without a place in the first turn of the user."
        )
    return payload | {
        "images": images,
        "turns": _with_numbers(payload["turns"], places, len(images)),
        "warnings": warnings,
    }


def _left_out(stored: Any) -> str | None:
    if not isinstance(stored, Mapping):
        return "its entry cannot be read."
    said = stored.get("left_out")
    return str(said) if said is not None else None


def _places(turns: Sequence[Mapping[str, Any]], raw: str) -> list[int]:
    """How many places for an image each turn has."""
    if not raw:
        return [len(PLACE.findall(turn["content"])) for turn in turns]
    units = raw.encode("utf-16-le", "surrogatepass")
    texts = (
        units[2 * turn["char_start"] : 2 * turn["char_stop"]].decode("utf-16-le", "surrogatepass")
        for turn in turns
    )
    return [len(PLACE.findall(text)) for text in texts]


def _with_numbers(turns: Sequence[dict[str, Any]], places: Sequence[int], n: int) -> list[dict[str, Any]]:
    changed = []
    at = 0
    for turn, count in zip(turns, places, strict=True):
        numbers = list(range(at, min(at + count, n)))
        at += count
        if not numbers:
            changed.append(turn)
            continue
        content = PLACE.sub(MARK, turn["content"].replace(MARK, "\ufffd"), count=len(numbers))
        changed.append(turn | {"images": numbers, "content": content})
    left = list(range(min(at, n), n))
    if left and changed:
        first = next((i for i, turn in enumerate(changed) if turn["role"] == "user"), 0)
        changed[first] = changed[first] | {"images": [*changed[first].get("images", ()), *left]}
    return changed
