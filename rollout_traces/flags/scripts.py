"""Which writing system characters belong to, coarsely, over whole texts at once."""

from __future__ import annotations

import numpy as np

_BLOCKS = (
    (0x0041, "Latin"),
    (0x005B, ""),
    (0x0061, "Latin"),
    (0x007B, ""),
    (0x00C0, "Latin"),
    (0x0250, ""),
    (0x0400, "Cyrillic"),
    (0x0530, "Armenian"),
    (0x0590, "Hebrew"),
    (0x0600, "Arabic"),
    (0x0700, ""),
    (0x0750, "Arabic"),
    (0x0780, ""),
    (0x08A0, "Arabic"),
    (0x0900, "Indic"),
    (0x0E00, "Thai"),
    (0x0E80, "Lao"),
    (0x0F00, "Tibetan"),
    (0x1000, "Myanmar"),
    (0x10A0, "Georgian"),
    (0x1100, "Hangul"),
    (0x1200, "Ethiopic"),
    (0x13A0, ""),
    (0x1780, "Khmer"),
    (0x1800, "Mongolian"),
    (0x18B0, ""),
    (0x1E00, "Latin"),
    (0x1F00, ""),
    (0x3040, "Chinese or Japanese"),
    (0x3100, ""),
    (0x3130, "Hangul"),
    (0x3190, ""),
    (0x3400, "Chinese or Japanese"),
    (0x4DC0, ""),
    (0x4E00, "Chinese or Japanese"),
    (0xA000, ""),
    (0xAC00, "Hangul"),
    (0xD7B0, ""),
    (0xF900, "Chinese or Japanese"),
    (0xFB00, ""),
    (0xFB50, "Arabic"),
    (0xFE00, ""),
    (0xFE70, "Arabic"),
    (0xFEFF, ""),
    (0x20000, "Chinese or Japanese"),
    (0x40000, ""),
)
"""First code point of each block and its writing system; Greek is left out, mathematics uses it."""

_FIRST = np.asarray([first for first, _ in _BLOCKS])
NAMES = ("", *sorted({name for _, name in _BLOCKS if name}))
_CODES = np.asarray([0, *(NAMES.index(name) for _, name in _BLOCKS)], np.uint8)


def code_points(text: str) -> np.ndarray:
    """uint32 [n characters]; lone surrogates as they are."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def script_codes(points: np.ndarray) -> np.ndarray:
    """uint8 [n]: index into `NAMES` of each character's writing system, 0 for anything but letters."""
    return _CODES[np.searchsorted(_FIRST, points, side="right")]


_WITHOUT_SPACES = ("Chinese or Japanese", "Hangul", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan")
_BESIDE_LATIN = np.isin(NAMES, _WITHOUT_SPACES)
_LATIN, _HANGUL, _HAN = (NAMES.index(name) for name in ("Latin", "Hangul", "Chinese or Japanese"))


def script_changes(codes: np.ndarray) -> np.ndarray:
    """bool [n]: letters right behind a letter of another script that no language writes it with.

    Names in Latin letters stand beside scripts without spaces; Hangul stands beside Chinese characters.

    Args:
        codes: uint8 [n], see `script_codes`.
    """
    one, two = codes[:-1], codes[1:]
    changes = (one > 0) & (two > 0) & (one != two)
    changes &= ~((one == _LATIN) & _BESIDE_LATIN[two]) & ~((two == _LATIN) & _BESIDE_LATIN[one])
    changes &= ~(np.isin(one, (_HANGUL, _HAN)) & np.isin(two, (_HANGUL, _HAN)))
    return np.concatenate([np.zeros(min(len(codes), 1), bool), changes])
