"""Sentences that replies are made of: of real conversations where they are at hand, else of our own."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "tau_airline_dev.json"
OWN = (
    "Let me work through this step by step.",
    "First I add the two numbers, then I multiply by three.",
    "The train leaves at noon and arrives two hours later.",
    "I have found your reservation and can change the seat.",
    "The function returns the sum of the list.",
    "We need to consider both cases before we decide.",
    "Your refund will arrive within five to seven business days.",
    "Checking the result: it satisfies the equation.",
    "The loop runs once for every item of the array.",
    "There are twelve apples left in the basket.",
    "Would you like me to proceed with the booking?",
    "The search returned three documents on the subject.",
)


@functools.cache
def sentences() -> tuple[str, ...]:
    """Short sentences, none twice."""
    if not REAL.is_file():
        return OWN
    found = dict.fromkeys(OWN)
    for conversation in json.loads(REAL.read_text("utf-8")):
        for message in conversation["messages"]:
            if message["role"] == "assistant" and message.get("content"):
                for sentence in re.split(r"(?<=[.?!])\s+", message["content"]):
                    if 20 <= len(sentence) <= 120:
                        found[sentence] = None
    return tuple(found)
