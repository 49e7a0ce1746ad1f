"""Declared keys as `fnmatch` patterns."""

from __future__ import annotations

import re


def as_globs(pattern: str) -> tuple[str, ...]:
    """Expands a declared key: `{a,b}` into each of its alternatives, `<name>` into `*`, `[x]` into x or nothing.

    Args:
        pattern: as in `Key.pattern`.

    Returns:
        Patterns for `fnmatch`.
    """
    for opener, closer in ("{}", "[]"):
        start = pattern.find(opener)
        if start >= 0:
            stop = pattern.index(closer, start)
            inside = pattern[start + 1 : stop]
            choices = inside.split(",") if opener == "{" else ["", inside]
            return tuple(
                glob
                for choice in choices
                for glob in as_globs(pattern[:start] + choice + pattern[stop + 1 :])
            )
    return (re.sub(r"<[^>]*>", "*", pattern),)


def may_overlap(first: str, second: str) -> bool:
    """Whether some text may match both of two `fnmatch` patterns; False only where none can.

    What stands before the first wildcard of either is compared, and what stands after the last.
    """
    heads = [re.split(r"[*?[]", pattern, maxsplit=1)[0] for pattern in (first, second)]
    if heads == [first, second]:
        return first == second
    tails = [re.split(r"[*?\]]", pattern)[-1] for pattern in (first, second)]
    short, long = sorted(heads, key=len)
    end, longer_end = sorted(tails, key=len)
    return long.startswith(short) and longer_end.endswith(end)
