"""Small image files, and files that only look like some."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any


def png(width: int = 8, height: int = 8, colour: tuple[int, int, int] = (200, 60, 40)) -> bytes:
    """A PNG of one colour."""
    rows = (b"\0" + bytes(colour) * width) * height
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def huge_png() -> bytes:
    """A PNG of a few bytes that says it has 4 billion pixels."""
    small = png()
    head = small[12:16] + struct.pack(">II", 65535, 65535) + small[24:29]
    return small[:12] + head + struct.pack(">I", zlib.crc32(head)) + small[33:]


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>'

PROMPT = "<|im_start|>user\nLook: <image> and <image> What is it?<|im_end|>\n<|im_start|>assistant\n"


def batch_with(images: Sequence[Any]) -> Any:
    """A group of rollouts, each with its images, of which two have a place in the prompt."""
    from rollout_traces.model.batch import RolloutBatch
    from tests.generator import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    prompt = tokenizer.encode(PROMPT, add_special_tokens=False)
    answer = tokenizer.encode("A red square.<|im_end|>", add_special_tokens=False)
    n = len(images)
    return RolloutBatch.from_prompt_response(
        [prompt] * n, [answer] * n, rewards=[float(row) for row in range(n)], group_ids=[0] * n, images=images
    )
