"""A script, run in a fresh interpreter: check one value against a JSON schema, within limits, and print the verdict.

A schema comes from a payload, and some schemas take for ever. Here that ends a process, not a worker. The interpreter
is isolated (`-I -S`): only the standard library is on its path, and the folders of jsonschema are added behind it.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

CPU_SECONDS = 5
MEMORY_BYTES = 1 << 30
_MESSAGE_CHARS = 300


def main() -> None:
    """Read {folders, schema, has_value, value} from stdin, print {verdict, at, message}."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    asked = json.load(sys.stdin)
    sys.path += asked["folders"]
    print(json.dumps(judge(asked)))  # noqa: T201 - a script's answer


def judge(asked: dict[str, Any]) -> dict[str, str]:
    """The verdict: valid, invalid, no_schema or unresolvable."""
    from jsonschema import SchemaError
    from jsonschema.exceptions import best_match
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    schema = asked["schema"]
    kind = validator_for(schema)
    try:
        kind.check_schema(schema)
    except SchemaError as exc:
        return {"verdict": "no_schema", "message": exc.message[:_MESSAGE_CHARS]}
    if not asked["has_value"]:
        return {"verdict": "valid"}
    try:
        # An empty registry: a schema from a payload must not make anything be fetched.
        error = best_match(kind(schema, registry=Registry()).iter_errors(asked["value"]))
    except Unresolvable as exc:
        return {"verdict": "unresolvable", "message": str(exc)[:_MESSAGE_CHARS]}
    if error is None:
        return {"verdict": "valid"}
    return {"verdict": "invalid", "at": error.json_path[:_MESSAGE_CHARS], "message": error.message[:_MESSAGE_CHARS]}


if __name__ == "__main__":
    main()
