"""Swap a folder for a link that leads outside, and back, as fast as can be, until stdin closes."""

from __future__ import annotations

import select
import sys
from pathlib import Path

folder, outside = map(Path, sys.argv[1:])
real = folder.with_suffix(".real")
rounds = 0
while rounds % 50 or not select.select([0], [], [], 0)[0]:
    folder.rename(real)
    folder.symlink_to(outside)
    folder.unlink()
    real.rename(folder)
    rounds += 1
