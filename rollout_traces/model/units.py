"""Units of size and of time."""

from __future__ import annotations

import sys

KB = 1 << 10
"""Bytes."""
MB = KB * KB
GB = KB * MB
MEGABYTE = 1e6
"""Bytes, of a file or a disk as its maker counts them."""
GIGABYTE = 1e9
MS = 1000
"""Milliseconds of a second."""
MINUTE = 60
"""Seconds."""
HOUR = 60 * MINUTE
DAY = 24 * HOUR
LARGEST_EXACT = 2**sys.float_info.mant_dig
"""Whole numbers below it are held exactly by every float, and so by JSON and a page."""
