"""Prompts: made from requirements, frozen when they are enqueued, and keys: identical requests share one run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from tenure.errors import InvalidArgument, nearest
from tenure.model.frozen import frozen

ID_MAX = 200
_FIELD = re.compile(r"\{\{|\}\}|\{([A-Za-z_][\w.-]*)\}|[{}]")

E_co = TypeVar("E_co", covariant=True)


class Enqueues(Protocol[E_co]):
    """What enqueues: an app, the context of a handler, or a change of the outbox."""

    @property
    def enqueue(self) -> Callable[..., E_co]: ...


@frozen
class Extraction:
    """How a requirement becomes the prompt of a `claude_extraction`, and where the answer goes.

    `template` and `target` name fields of the requirement in braces: `{id}`, `{owner.name}`; `{{` and `}}` stand for
    the braces themselves. A text goes in as it is, anything else as JSON. Fields are put in once: braces in a
    requirement's own text mean nothing. In `target` a field is one part of a path.

    Examples:
        >>> extraction = Extraction("List the risks of {id}:\\n{text}", target="risks/{id}.json")
        >>> extraction.prompt({"id": "REQ-7", "text": "Sign in with {a} key."})
        'List the risks of REQ-7:\\nSign in with {a} key.'
    """

    template: str
    target: str
    id_field: str = "id"
    output_schema: Mapping[str, Any] | None = None
    overwrite: bool = True

    def prompt(self, requirement: Mapping[str, Any]) -> str:
        """The prompt for a requirement. Raises: InvalidArgument: the template names a field that it does not have."""
        return _fill(self.template, requirement)

    def payload(self, requirement: Mapping[str, Any]) -> dict[str, Any]:
        """What a `claude_extraction` takes. The prompt is made now, and its hash with it: it stays what it is, whatever
        becomes of the requirement.

        Raises: InvalidArgument: a field is missing, the id is no text or number, or a part of the path has a slash.
        """
        named = _find(requirement, self.id_field)
        if not isinstance(named, str | int) or isinstance(named, bool) or not 0 < len(str(named)) <= ID_MAX:
            raise InvalidArgument(
                f"The requirement's {self.id_field!r} must be a text or a number of 1 to {ID_MAX} characters, got "
                f"{type(named).__name__}. Nothing was enqueued."
            )
        prompt = self.prompt(requirement)
        made = {
            "prompt": prompt,
            "promptHash": prompt_hash(prompt),
            "requirementId": str(named),
            "targetPath": _fill(self.target, requirement, is_path=True),
            "overwrite": self.overwrite,
        }
        return made if self.output_schema is None else made | {"outputSchema": dict(self.output_schema)}

    def enqueue(self, by: Enqueues[E_co], requirement: Mapping[str, Any], **options: Any) -> E_co:
        """Enqueue the extraction by an app, a handler's context, or a change of an Outbox: then the requirement's file
        and its extraction are accepted in one step. The same prompt is one run while it is active."""
        return by.enqueue("claude_extraction", self.payload(requirement), **options)


def prompt_hash(prompt: str) -> str:
    """SHA-256 of a prompt, in hex."""
    return hashlib.sha256(prompt.encode()).hexdigest()


def request_key(payload: str) -> str:
    """The idempotency key of a job for an agent: its prompt's hash, and a hash of everything else that was asked for.

    Two jobs with the same prompt and, say, different targets are two runs; the very same request is one.
    """
    rest = json.loads(payload)
    prompt = str(rest.pop("promptHash", ""))
    rest.pop("prompt", None)
    told = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return f"{prompt}:{hashlib.sha256(told.encode()).hexdigest()[:16]}"


def _fill(template: str, requirement: Mapping[str, Any], *, is_path: bool = False) -> str:
    """The template with its fields; what is put in is not looked at again."""

    def put(found: re.Match[str]) -> str:
        if found[0] in {"{{", "}}"}:
            return found[0][0]
        if found[1] is None:
            raise InvalidArgument(
                f"{template[max(0, found.start() - 20) : found.end() + 20]!r} has a brace that names no field. Write "
                "{name} for a field and {{ or }} for the brace itself. Nothing was enqueued."
            )
        value = _find(requirement, found[1])
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
        if is_path and ("/" in text or text in {"", ".", ".."}):
            raise InvalidArgument(
                f"{found[1]!r} is {text!r}, which is no name for a part of the target's path. Nothing was enqueued."
            )
        return text

    return _FIELD.sub(put, template)


def _find(requirement: Mapping[str, Any], name: str) -> Any:
    here: Any = requirement
    for part in name.split("."):
        if not isinstance(here, Mapping) or part not in here:
            known = [str(one) for one in here] if isinstance(here, Mapping) else []
            raise InvalidArgument(f"The requirement has no {name!r}.{nearest(part, known)} Nothing was enqueued.")
        here = here[part]
    return here
