"""Sentences that replies are made of."""

from __future__ import annotations

import functools

from tests import service_desk

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
    return tuple(dict.fromkeys((*OWN, *service_desk.sentences())))
