"""Reading profile files. What is wrong in one is named by its place, because users write them too.

A profile is `NAME.toml`; its views and functions stand beside it in `NAME.postgres.sql` and `NAME.sqlite.sql`, each of
which may be missing, or be several (`sql.postgres = [...]` lists them).
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final, get_type_hints

from tenure.errors import ConfigError, UnknownProfile, nearest
from tenure.model.frozen import frozen
from tenure.model.policy import Backoff, QueuePolicy
from tenure.model.profile import STAGES, Profile

ENGINES: Final = ("postgres", "sqlite")
GATES: Final = ("master", "worker", "notify", "heartbeat")
_KEYS: Final = frozenset(
    {"name", "title", "specification", "queues", "policy", "words", "gates", "settings", "shows", "sql"}
)
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")


@frozen
class ProfileFile:
    """A profile with the SQL that shows it, by engine."""

    profile: Profile
    scripts: Mapping[str, str]
    checksum: str


def shipped() -> tuple[str, ...]:
    """The names of the profiles that come with Tenure."""
    return tuple(
        sorted(found.name.removesuffix(".toml") for found in _room().iterdir() if found.name.endswith(".toml"))
    )


def load(name: str) -> ProfileFile:
    """A shipped profile by its name, or the one in a file, named by a path that ends in .toml.

    Raises: UnknownProfile, ConfigError (the file says something that cannot be).
    """
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise UnknownProfile(
                f"There is no profile file {name}. Name a .toml file, or one of: {', '.join(shipped())}."
            )
        return read(path)
    return _shipped(name)


@cache
def _shipped(name: str) -> ProfileFile:
    if name not in shipped():
        raise UnknownProfile(
            f"There is no profile {name!r}.{nearest(name, shipped())} Name one of your own by its file: ./{name}.toml."
        )
    return read(_room() / f"{name}.toml")


def read(path: Path | Traversable) -> ProfileFile:
    """Read one file. Raises: ConfigError."""
    where = path.name
    try:
        text = path.read_text(encoding="utf-8")
        found = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError(f"{where} cannot be read as a profile: {exc}.") from exc
    _known(where, "", found, _KEYS)
    profile = _profile(where, found)
    beside = path.parent if isinstance(path, Path) else _room()
    scripts = {engine: _script(where, beside, profile.name, engine, found.get("sql", {})) for engine in ENGINES}
    told = "\0".join([text, *scripts.values()])
    return ProfileFile(profile, scripts, hashlib.sha256(told.encode()).hexdigest())


def _profile(where: str, found: Mapping[str, Any]) -> Profile:
    name = found.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name == "tenure":
        raise ConfigError(f"{where}: name: {name!r} is no name for a profile. Use lower-case letters, digits and _.")
    words = _table(where, "words", found)
    _known(where, "words.", words, STAGES)
    missing = [stage for stage in STAGES if stage != "cleaned" and not isinstance(words.get(stage), str)]
    if missing:
        raise ConfigError(f"{where}: words: there is no word for {', '.join(missing)}.")
    gates = _table(where, "gates", found)
    _known(where, "gates.", gates, ("closed",))
    closed = _names(where, "gates.closed", gates.get("closed", []))
    if not set(closed) <= set(GATES):
        raise ConfigError(f"{where}: gates.closed: gates of a profile are {', '.join(GATES)}.")
    return Profile(
        name=name,
        title=str(found.get("title", name)),
        specification=found.get("specification"),
        policy=_policy(where, name, _table(where, "policy", found)),
        words=dict(words),
        queues=_names(where, "queues", found.get("queues", [name])),
        closed_gates=closed,
        settings=dict(_table(where, "settings", found)),
        shows=_names(where, "shows", found.get("shows", [])),
    )


def _policy(where: str, name: str, found: Mapping[str, Any]) -> QueuePolicy:
    """A policy from a table. Whether its numbers make sense is judged by the store, as for any other policy."""
    given = dict(found)
    backoff = _settings(where, "policy.backoff.", _table(where, "backoff", given), Backoff)
    given.pop("backoff", None)
    if "forbidden_keys" in given:
        given["forbidden_keys"] = _names(where, "policy.forbidden_keys", given["forbidden_keys"])
    if "profile" in given:
        raise ConfigError(f"{where}: policy.profile: the profile is {name!r}; it is not set here.")
    # TOML has no null: 0 says for ever, or unlimited, where a policy has None.
    for key in ("retain_seconds", "concurrency", "concurrency_per_key", "aging_seconds"):
        if given.get(key) == 0:
            given[key] = None
    return replace(
        QueuePolicy(profile=name, backoff=Backoff(**backoff)), **_settings(where, "policy.", given, QueuePolicy)
    )


def _settings(where: str, place: str, found: Mapping[str, Any], wanted: type) -> dict[str, Any]:
    types = get_type_hints(wanted)
    _known(where, place, found, [field.name for field in fields(wanted)])
    told = {}
    for key, value in found.items():
        shape = str(types[key])
        if "float" in shape and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)  # noqa: PLW2901 - 30 is as good as 30.0
        fits = {"bool": bool, "float": float, "int": int, "str": str, "Literal": str, "tuple": tuple}
        kinds = tuple(kind for word, kind in fits.items() if word in shape)
        if value is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
            raise ConfigError(f"{where}: {place}{key}: {value!r} does not fit; it wants {shape}.")
        told[key] = value
    return told


def _script(where: str, beside: Path | Traversable, name: str, engine: str, listed: Mapping[str, Any]) -> str:
    parts = _names(where, f"sql.{engine}", listed.get(engine, []))
    if not parts:
        lone = beside / f"{name}.{engine}.sql"
        return lone.read_text(encoding="utf-8") if lone.is_file() else ""
    for part in parts:
        if "/" in part or not (beside / part).is_file():
            raise ConfigError(f"{where}: sql.{engine}: there is no file {part!r} beside it.")
    return "\n".join((beside / part).read_text(encoding="utf-8") for part in parts)


def _table(where: str, key: str, found: Mapping[str, Any]) -> Mapping[str, Any]:
    value = found.get(key, {})
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {key}: expected a table, got {value!r}.")
    return value


def _names(where: str, place: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise ConfigError(f"{where}: {place}: expected a list of names, got {value!r}.")
    return tuple(value)


def _known(where: str, place: str, found: Mapping[str, Any], known: Any) -> None:
    for key in found:
        if key not in known:
            raise ConfigError(f"{where}: {place}{key}: there is no such setting.{nearest(key, known)}")


def _room() -> Traversable:
    return files("tenure.profiles")
