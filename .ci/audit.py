# ruff: noqa: INP001 - a script; the folder is no package
"""Look for known vulnerabilities in what is pinned, where a service can be asked.

    python .ci/audit.py probe                      exit 1, with the reason, if the service cannot be asked from here
    python .ci/audit.py run PIP-AUDIT FILE …       exit 1 for a finding, whatever else could not be asked for
    python .ci/audit.py run --strict PIP-AUDIT …   exit 1 also for a package that could not be asked for

The service is PyPI's own, which a package index inside a company does not offer and a machine without a network cannot
reach. `make check` asks it where it answers and says so where it does not; `make audit` is strict.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import urllib.request
from typing import Any, Final

SERVICE: Final = "https://pypi.org/pypi"
KNOWN: Final = "pip/24.0/json"
"""A package that is always there; the answer has to say what is known of it."""
SECONDS: Final = 10.0


def main(arguments: list[str]) -> int:
    """Do what the arguments ask for; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    acts = parser.add_subparsers(dest="act", required=True)
    probe = acts.add_parser("probe")
    probe.add_argument("--service", default=SERVICE)
    run = acts.add_parser("run")
    run.add_argument("--strict", action="store_true")
    run.add_argument("program")
    run.add_argument("files", nargs="+")
    given = parser.parse_args(arguments)
    if given.act == "probe":
        return _say(reason := unanswered(given.service)) or int(reason is not None)
    return max(audit(given.program, file, strict=given.strict) for file in given.files)


def unanswered(service: str) -> str | None:
    """Why the service cannot be asked; None if it can."""
    try:
        with urllib.request.urlopen(f"{service}/{KNOWN}", timeout=SECONDS) as reply:  # noqa: S310 - https, or a test's
            answer = json.load(reply)
    except (OSError, ValueError) as exc:
        return f"Skipped: known vulnerabilities were not looked up, because {service} does not answer ({exc})."
    if not isinstance(answer, dict) or "vulnerabilities" not in answer:
        return f"Skipped: known vulnerabilities were not looked up, because {service} tells nothing of them."
    return None


def audit(program: str, file: str, *, strict: bool) -> int:
    """Look up what one file pins, and say what was found; the exit code."""
    command = [
        program,
        "--format",
        "json",
        "--progress-spinner",
        "off",
        "--disable-pip",
        "--require-hashes",
        "-r",
        file,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        _say(f"{file}: could not be looked up: {(done.stderr.strip() or 'no answer').splitlines()[-1]}")
        return int(strict)
    findings = [(one, found) for one in packages for found in one.get("vulns", [])]
    unasked = [one["name"] for one in packages if "skip_reason" in one]
    for one, found in findings:
        fixed = ", ".join(found.get("fix_versions", [])) or "no version yet"
        _say(f"{file}: {one['name']} {one['version']} has {found['id']}; fixed by {fixed}")
    if unasked:
        _say(f"{file}: {len(unasked)} of {len(packages)} packages could not be looked up, such as {unasked[0]}")
    if not findings and not unasked:
        _say(f"{file}: nothing is known against {len(packages)} packages")
    return int(bool(findings) or (strict and bool(unasked)))


def _say(sentence: str | None) -> int:
    if sentence is not None:
        sys.stdout.write(f"{sentence}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
