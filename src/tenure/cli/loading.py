"""Finding the user's app: `module:name`, as in `tasks:app`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tenure.errors import ConfigError, nearest

if TYPE_CHECKING:
    from tenure.app import App

DEFAULT_TARGET = "tasks:app"


def load_app(target: str | None) -> App:
    """Import the app; the current folder comes first on the path.

    Raises: ConfigError, with what was found instead.
    """
    from tenure.app import App

    if target is None:
        if not Path("tasks.py").is_file():
            raise ConfigError("Which app? Name it as module:name, as in `tenure worker tasks:app`.")
        target = DEFAULT_TARGET
    module_name, _, attribute = target.partition(":")
    module_name = module_name.removesuffix(".py").replace("/", ".")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not (module_name == exc.name or module_name.startswith(exc.name + ".")):
            raise ConfigError(f"{target!r} could not be loaded: it imports {exc.name!r}, which is not there.") from exc
        there = [path.stem for path in Path().glob("*.py")]
        raise ConfigError(f"There is no module {exc.name!r} to import.{nearest(module_name, there)}") from exc
    apps = {name: value for name, value in vars(module).items() if isinstance(value, App)}
    found = apps.get(attribute or "app")
    if found is None:
        raise ConfigError(
            f"Module {module_name!r} has no App named {attribute or 'app'!r}."
            + (f" It has: {', '.join(sorted(apps))}." if apps else " Make one: app = tenure.App('sqlite:///jobs.db').")
        )
    return found


@contextmanager
def loaded(target: str | None, url: str | None = None) -> Iterator[App]:
    """The user's app, closed at the end. A `url` wins over the app's own."""
    found = load_app(target)
    with closing(found) if url is None else found.pointed_at(url):
        yield found
