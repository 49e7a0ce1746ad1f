"""Which rank of a job this process is."""

from __future__ import annotations

import sys


def is_rank_zero() -> bool:
    """True without torch.distributed, and on rank 0 with it; torch is not imported for this."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return True
    return bool(distributed.get_rank() == 0)
