# ruff: noqa: INP001  a script beside the documents that it makes
"""Fetch the vendored files of the console from the npm registry anew, and compare them with what is in the tree.

python docs/console/vendor.py             # fetch, check every hash, say what differs
python docs/console/vendor.py --write     # the same, and write the files
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import sys
import tarfile
import tomllib
import urllib.request
from pathlib import Path

REGISTRY = os.environ.get("NPM_CONFIG_REGISTRY", "https://registry.npmjs.org/").rstrip("/")
VENDOR = Path(__file__).parents[2] / "src/tenure/web/static/vendor"


def main() -> int:
    told = tomllib.loads((VENDOR / "vendor.toml").read_text())
    wrong = 0
    for package in told["package"]:
        with urllib.request.urlopen(f"{REGISTRY}/{package['tarball']}", timeout=60) as reply:  # noqa: S310
            body = reply.read()
        if hashlib.sha256(body).hexdigest() != package["sha256"]:
            sys.stdout.write(f"{package['name']}: the registry's tarball is another one than was pinned\n")
            return 1
        with tarfile.open(fileobj=io.BytesIO(body)) as tar:
            for file in package["file"]:
                inner = tar.extractfile(file["path"])
                assert inner is not None
                text = inner.read()
                digest = base64.b64encode(hashlib.sha384(text).digest()).decode()
                if "--write" in sys.argv:
                    (VENDOR / file["name"]).write_bytes(text)
                is_same = digest == file["sha384"] and (VENDOR / file["name"]).read_bytes() == text
                wrong += not is_same
                sys.stdout.write(
                    f"{file['name']}: {'as pinned' if is_same else 'DIFFERS from the tree or from vendor.toml'}\n"
                )
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
