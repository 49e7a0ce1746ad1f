"""The decoder's own tests with the oldest transformers it is said to work with."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import transformers

ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    os.chdir(ROOT)
    print(f"transformers {transformers.__version__}")
    files = [f"tests/decode/test_{name}.py" for name in ("golden", "decoder", "messages", "spans")]
    sys.exit(pytest.main(["-q", "-m", "not slow", "-p", "no:cacheprovider", *files]))
