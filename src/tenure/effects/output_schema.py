"""JSON schemas from payloads: bounded at enqueue, and used only in a child process that can be killed.

A schema is a program of a kind. `^(a+)+$` as a pattern takes minutes for 30 characters, and references that fan out
take as long. So size and depth are bounded, keywords with such powers need the operator's consent, and what is left
is checked in a process with limits on processor time, memory and wall time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from tenure.errors import MissingExtra
from tenure.model.frozen import frozen

SCHEMA_CHARS = 32_768
SCHEMA_DEPTH = 32
WALL_SECONDS = 15.0
POWERFUL = frozenset({"pattern", "patternProperties", "$ref", "$dynamicRef", "$recursiveRef"})
"""Keywords that an operator's tool has to allow: by them a small schema can take very long."""

_CHILD = Path(__file__).with_name("schema_child.py")
_PACKAGES = ("jsonschema", "referencing", "jsonschema_specifications", "rpds", "attrs", "attr", "typing_extensions")
_NAMED_SCHEMAS = {"properties", "$defs", "definitions", "dependentSchemas", "patternProperties"}
_PLAIN_VALUES = {"const", "enum", "default", "examples", "required", "dependentRequired", "type", "title"}


@frozen
class Verdict:
    """What a check found."""

    sort: Literal["valid", "invalid", "no_schema", "unresolvable", "too_slow"]
    at: str = ""
    message: str = ""


def why_too_large(schema: dict[str, Any]) -> str | None:
    """Why a schema is refused at enqueue, or None."""
    if _depth(schema) > SCHEMA_DEPTH:
        return f"it is nested deeper than {SCHEMA_DEPTH} levels"
    if len(json.dumps(schema)) > SCHEMA_CHARS:
        return f"it has more than {SCHEMA_CHARS:,} characters"
    return None


def powerful_keywords(schema: Any, allowed: Collection[str] = ()) -> list[str]:
    """The keywords in a schema that need the operator's consent and do not have it."""
    return sorted({name for name in _keywords(schema) if name in POWERFUL and name not in allowed})


def check(schema: dict[str, Any], *value: Any) -> Verdict:
    """Check the schema itself and, if one is given, a value against it, in a child process.

    Raises: MissingExtra, if jsonschema is not installed.
    """
    asked = {"folders": _folders(), "schema": schema, "has_value": bool(value), "value": value[0] if value else None}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(_CHILD)],
            input=json.dumps(asked).encode(),
            capture_output=True,
            check=False,
            timeout=WALL_SECONDS,
            env={},
            cwd="/",
        )
    except subprocess.TimeoutExpired:
        return Verdict("too_slow")
    if done.returncode != 0:  # mostly by SIGXCPU or without memory
        return Verdict("too_slow", message=done.stderr.decode(errors="replace").strip()[-300:])
    answer = json.loads(done.stdout)
    return Verdict(answer["verdict"], answer.get("at", ""), answer.get("message", ""))


def _folders() -> list[str]:
    """The folders that jsonschema and what it needs are in."""
    if find_spec("jsonschema") is None or find_spec("referencing") is None:
        raise MissingExtra("agents", "Checking an answer against a schema")
    found: dict[str, None] = {}
    for name in _PACKAGES:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            folder = Path(spec.origin).absolute().parent
            found[str(folder.parent if spec.submodule_search_locations else folder)] = None
    return list(found)


def _depth(value: Any) -> int:
    """How deep data is nested; without recursion, and no further than is of interest."""
    depth, level = 0, [value]
    while level and depth <= SCHEMA_DEPTH:
        depth += 1
        level = [
            item
            for one in level
            if isinstance(one, dict | list)
            for item in (one.values() if isinstance(one, dict) else one)
            if isinstance(item, dict | list)
        ]
    return depth


def _keywords(schema: Any) -> Iterator[str]:
    """Every keyword, wherever a schema can stand. A property may be called `pattern`; that is a name."""
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            yield from one
            for name, item in one.items():
                if name in _NAMED_SCHEMAS and isinstance(item, dict):
                    waiting += item.values()
                elif name not in _PLAIN_VALUES:
                    waiting.append(item)
