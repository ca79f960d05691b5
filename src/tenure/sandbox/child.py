"""The script that a worker starts in a fresh interpreter: `--probe`, or two numbers of open descriptors.

It imports what it needs of `tenure.effects` without running `tenure/__init__.py`, for which a child has no use:
each job would pay for it. What it does is in init.py.
"""

from __future__ import annotations

import socket
import sys
import types
from pathlib import Path


def main(argv: list[str]) -> None:
    """Run as a script: try the namespaces, or serve the control socket and the orders given by number."""
    package = types.ModuleType("tenure")
    package.__path__ = [str(Path(__file__).resolve().parents[1])]
    sys.modules.setdefault("tenure", package)
    from tenure.sandbox import init

    if argv == ["--probe"]:
        init.probe()
    else:
        init.main(socket.socket(fileno=int(argv[0])), int(argv[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
