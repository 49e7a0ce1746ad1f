"""What a text is like as a whole: its script, the form of its answer, whether it refuses."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np

PREFIX = "written/"
SCRIPTS = {
    "Latin": ("LATIN",),
    "Cyrillic": ("CYRILLIC",),
    "Greek": ("GREEK",),
    "Arabic": ("ARABIC",),
    "Hebrew": ("HEBREW",),
    "Hangul": ("HANGUL",),
    "Thai": ("THAI",),
    "Chinese or Japanese": ("CJK", "HIRAGANA", "KATAKANA"),
    "Indic": (
        *("DEVANAGARI", "BENGALI", "GURMUKHI", "GUJARATI", "ORIYA"),
        *("TAMIL", "TELUGU", "KANNADA", "MALAYALAM", "SINHALA"),
    ),
}
"""How a script is called, with the first words of its letters' Unicode names."""
FORMS = {
    "boxed": re.compile(r"\\boxed\s*\{"),
    "answer tag": re.compile(r"<answer>", re.IGNORECASE),
    "hashes": re.compile(r"####"),
    "code block": re.compile(r"```"),
    "final answer": re.compile(r"\banswer\s*(?:is\b|:)", re.IGNORECASE),
}
"""Forms of an answer. A text has the first of them whose mark it holds, so the plainest mark comes first."""
REFUSAL = re.compile(r"\b(?:i (?:cannot|can['’]t)|i(?: am|['’]m) (?:sorry|unable)|as an ai)\b", re.IGNORECASE)
OTHER = "other"


def text_shapes(texts: Sequence[str], column: str, value: str | None) -> np.ndarray | None:
    """[N] whether each text is of a shape; None where the shape is not known.

    Args:
        texts: all texts.
        column: `written/script`, `written/answer` or `written/refusal`.
        value: a script, or two as `Latin with Cyrillic`; a form of `FORMS`; `refusal`.
    """
    if column == "written/script":
        return _in_scripts(texts, value)
    if column == "written/answer" and value in FORMS:
        return np.asarray([_form(text) == value for text in texts], float)
    if column == "written/refusal" and value in (None, "refusal"):
        return np.asarray([REFUSAL.search(text) is not None for text in texts], float)
    return None


def _form(text: str) -> str:
    return next((name for name, mark in FORMS.items() if mark.search(text)), OTHER)


def _in_scripts(texts: Sequence[str], value: str | None) -> np.ndarray | None:
    """Whether all letters are of one script; of two, whether both are there and the first is as common or more."""
    asked = (value or "").split(" with ")
    if len(asked) > 2 or not set(asked) <= set(SCRIPTS):
        return None
    counts = [_letters(text) for text in texts]
    if len(asked) == 1:
        return np.asarray([set(c) <= set(asked) for c in counts], float)
    most, also = asked
    return np.asarray([c[most] >= c[also] > 0 for c in counts], float)


_NO_LETTERS = {code: None for code in range(128) if not chr(code).isalpha()}


def _letters(text: str) -> Counter[str]:
    """How many letters of each script a text holds."""
    if text.isascii():
        return Counter(Latin=len(text.translate(_NO_LETTERS)))
    found: Counter[str] = Counter()
    for letter, many in Counter(text).items():
        if letter.isalpha():
            found[_script(letter)] += many
    return found


@functools.cache
def _script(letter: str) -> str:
    first = unicodedata.name(letter, "").split(" ")[0]
    return next((name for name, firsts in SCRIPTS.items() if first in firsts), OTHER)
