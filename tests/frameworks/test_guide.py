"""The guide's blocks run as they stand, one script for the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "agent-frameworks.md"
BLOCK = re.compile(r"^```python frameworks\n(.*?)^```\n\n```text\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def test_the_blocks_print_what_the_page_says(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) == 2
    (tmp_path / "page.py").write_text("\n".join(code for code, _ in blocks))

    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(text for _, text in blocks)
