"""Files as another user of the machine would have put them there."""

from __future__ import annotations

import os
from pathlib import Path

NOBODY = 65534


def give_away(path: Path) -> str:
    """Makes a file or folder another user's; where the tests do not run as root, one that others may write.

    Returns:
        What is said of it.
    """
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        return f"belongs to user {NOBODY}"
    path.chmod(0o777)
    return "may be written by others"
