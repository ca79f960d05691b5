"""A queue's settings as people write them, in a shell or a form: `max_attempts=5`, `lease_seconds=10m`,
`backoff.shape=linear`, `concurrency=none`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

from tenure.errors import InvalidArgument, nearest
from tenure.model.duration import duration_seconds, duration_text
from tenure.model.policy import Backoff, QueuePolicy

_BACKOFF = "backoff."


def read_settings(policy: QueuePolicy, words: Mapping[str, str]) -> dict[str, Any]:
    """Settings as QueuePolicy has them. `policy` is what the queue has now: parts of its backoff that are not named
    stay.

    Raises: InvalidArgument, naming the setting and what to write.
    """
    settings: dict[str, Any] = {}
    backoff: dict[str, Any] = {}
    for name, word in words.items():
        if name == "backoff":
            backoff["shape"] = word
        elif name.startswith(_BACKOFF):
            part = name.removeprefix(_BACKOFF)
            backoff[part] = _value(name, word, _known(part, Backoff, "backoff setting"))
        else:
            settings[name] = _value(name, word, _known(name, QueuePolicy, "queue setting"))
    if backoff:
        settings["backoff"] = replace(policy.backoff, **backoff)
    return settings


def write_settings(policy: QueuePolicy) -> dict[str, str]:
    """Every setting in words that `read_settings` reads back."""
    told = {one.name: _word(one.name, getattr(policy, one.name)) for one in fields(policy) if one.name != "backoff"}
    parts = {_BACKOFF + one.name: _word(one.name, getattr(policy.backoff, one.name)) for one in fields(policy.backoff)}
    return told | parts


def _known(name: str, policy: type, what: str) -> Any:
    types = get_type_hints(policy)
    if name not in types:
        raise InvalidArgument(f"There is no {what} {name!r}.{nearest(name, types)}")
    return types[name]


def _value(name: str, word: str, wanted: Any) -> Any:
    """A word as the type that the setting has."""
    kinds = get_args(wanted) or (wanted,)
    if type(None) in kinds and word.lower() in {"none", "null", "off", ""}:
        return None
    if bool in kinds:
        if word.lower() not in {"true", "false", "yes", "no", "on", "off"}:
            raise InvalidArgument(f"{name}={word}: write true or false.")
        return word.lower() in {"true", "yes", "on"}
    if int in kinds:
        try:
            return int(word)
        except ValueError:
            raise InvalidArgument(f"{name}={word}: write a whole number.") from None
    if float in kinds:
        try:
            return duration_seconds(word)
        except ValueError as exc:
            raise InvalidArgument(f"{name}: {exc}") from None
    if wanted == tuple[str, ...]:
        return tuple(part.strip() for part in word.split(",") if part.strip())
    return word


def _word(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return duration_text(value) if name.endswith("_seconds") else f"{value:g}"
    return ", ".join(value) if isinstance(value, tuple) else str(value)
