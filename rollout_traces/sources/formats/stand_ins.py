"""What stands in for classes of other packages in a file that torch loads without running code.

Only what is named here is made, and it is made by this module: no code of numpy or of a trainer sees the file.
"""

from __future__ import annotations

import contextlib
from typing import Any, cast

import numpy as np


class _Fields(dict[str, Any]):
    """A dataclass of a trainer, as a mapping of its fields."""

    def __setstate__(self, state: Any) -> None:
        self.update(state)


class _Array:
    """An array that no rollout has a place for, such as the experts of each token."""

    def __setstate__(self, state: Any) -> None: ...


class _Kind:
    """numpy's dtype, by the text that names it."""

    def __init__(self, name: str, *_: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None: ...


def _array(*_: Any) -> _Array:
    return _Array()


def _scalar(kind: _Kind, data: Any) -> float | int | bool:
    if not isinstance(kind, _Kind) or kind.name not in (
        "f2",
        "f4",
        "f8",
        "i1",
        "i2",
        "i4",
        "i8",
        "u1",
        "u2",
        "u4",
        "u8",
        "b1",
    ):
        raise ValueError("a scalar of numpy that is no number")
    raw = data if isinstance(data, bytes) else str(data).encode("latin1")
    return np.frombuffer(raw, f"<{kind.name}", 1)[0].item()


_NAMED: list[Any] = [
    *((_array, f"numpy.{core}.multiarray._reconstruct") for core in ("_core", "core")),
    *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("_core", "core")),
    (_Array, "numpy.ndarray"),
    (_Kind, "numpy.dtype"),
    *((_Fields, f"miles.utils.types.{name}") for name in ("AdapterRef", "RewardSpec")),
]
_FIRST_TORCH = (2, 6)
"""An earlier torch lets nothing stand in for another name."""


def standing_in(torch: Any) -> contextlib.AbstractContextManager[None]:
    """While it lasts, `torch.load(weights_only=True)` makes these in place of what they are named after."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < _FIRST_TORCH:
        return contextlib.nullcontext()
    return cast("contextlib.AbstractContextManager[None]", torch.serialization.safe_globals(_NAMED))
