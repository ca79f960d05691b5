"""Finding the user's app: `module:name`, as in `tasks:app`.

The current folder comes last on `sys.path`, so no file in it is imported in place of a library, and only commands that
load an app have it there at all.
"""

from __future__ import annotations

import ast
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

from tenure.errors import AppNotLoaded, ConfigError, TenureError, nearest

if TYPE_CHECKING:
    from tenure.app import App

DEFAULT_FILE = "tasks.py"
DEFAULT_TARGET = "tasks:app"


def default_target() -> str | None:
    """The app that TENURE_APP names, or that of this folder, if there is a tasks.py."""
    if named := os.environ.get("TENURE_APP"):
        return named
    return DEFAULT_TARGET if Path(DEFAULT_FILE).is_file() else None


def declared_url() -> str | None:
    """The database that this folder's app is given in its source, as in `app = tenure.App("sqlite:///shop.db")`.

    Read without running it, for commands that load no app. None where the source does not say: `App()`, or a URL that
    is worked out.
    """
    target = default_target()
    if target is None:
        return None
    where, _, attribute = target.partition(":")
    path = Path(where if where.endswith(".py") else f"{where.replace('.', '/')}.py")
    try:
        lines = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return None
    for line in lines:
        match line:
            case ast.Assign(targets=[ast.Name(id=name)], value=made) if name == (attribute or "app"):
                return next(filter(None, map(_url_of, ast.walk(made))), None)
    return None


def _url_of(node: ast.AST) -> str | None:
    """The text in `App("…")` or `tenure.App(url="…")`."""
    match node:
        case ast.Call(func=ast.Name(id="App") | ast.Attribute(attr="App"), args=[ast.Constant(value=str(url)), *_]):
            return url
        case ast.Call(func=ast.Name(id="App") | ast.Attribute(attr="App"), keywords=named):
            given = next((one.value for one in named if one.arg == "url"), None)
            return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else None
    return None


def load_app(target: str | None) -> App:
    """Import the app named as `module:name`, `module` or `folder/module.py:name`.

    Raises: AppNotLoaded, with the traceback of the user's own code; ConfigError, with what was found instead.
    """
    from tenure.app import App

    target = target or default_target()
    if target is None:
        raise ConfigError("There is no tasks.py here. Write one with `tenure init`, or name an app, as in shop:app.")
    where, _, attribute = target.partition(":")
    module_name, folder = _module_of(where)
    if not module_name.startswith("tenure.") and str(folder) not in sys.path:
        sys.path.append(str(folder))
    module = _imported(module_name, target)
    apps = {name: value for name, value in vars(module).items() if isinstance(value, App)}
    found = apps.get(attribute or "app")
    if not attribute and len(apps) == 1:
        (found,) = apps.values()
    if found is None:
        raise ConfigError(
            f"Module {module_name!r} ({_file_of(module)}) has no App named {attribute or 'app'!r}."
            + (f" It has: {', '.join(sorted(apps))}." if apps else " Make one: app = tenure.App('sqlite:///jobs.db').")
            + _shadowed(module, module_name, folder)
        )
    return found


@contextmanager
def loaded(target: str | None, url: str | None = None, *, create: bool = True) -> Iterator[App]:
    """The user's app, closed at the end. A `url` wins over the app's own. Commands that look do not `create`."""
    from tenure.cli.options import opened

    found = load_app(target)
    with closing(found) if url is None else found.pointed_at(url):
        if not create:
            with opened(found.url) as there:
                there.now()  # opens it, or says that there is none
        yield found


def _module_of(where: str) -> tuple[str, Path]:
    """The module's name and the folder from which it is imported: this one, or that of a file elsewhere."""
    here = Path.cwd()
    if not where.endswith(".py") and "/" not in where:
        return where, here
    path = Path(where if where.endswith(".py") else f"{where}.py").resolve()
    if not path.is_file():
        there = [one.name for one in Path(where).resolve().parent.glob("*.py")]
        raise ConfigError(f"There is no file {where!r}.{nearest(Path(where).name, there)}")
    if path.is_relative_to(here):
        return ".".join(path.relative_to(here).with_suffix("").parts), here
    return path.stem, path.parent


def _imported(name: str, target: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name == exc.name or name.startswith(exc.name + ".")):
            there = [path.stem for path in Path().glob("*.py")]
            raise ConfigError(f"There is no module {exc.name!r} to import.{nearest(name, there)}") from exc
        raise AppNotLoaded(target, _headline(exc), _own_traceback(exc)) from exc
    except (Exception, SystemExit) as exc:  # whatever the user's module raises is the user's to see
        raise AppNotLoaded(target, _headline(exc), _own_traceback(exc)) from exc


def _headline(exc: BaseException) -> str:
    return traceback.format_exception_only(exc)[-1].strip()


def _own_traceback(exc: BaseException) -> str:
    """The traceback from where the user's own code begins. What Tenure refused is shown where it was asked for."""
    found: TracebackType | None = exc.__traceback__
    while found is not None and _is_machinery(found):
        found = found.tb_next
    told = traceback.TracebackException(type(exc), exc, found)
    if is_refused := isinstance(exc, TenureError):
        told.stack = traceback.StackSummary.from_list([step for step in told.stack if not _is_ours(step.filename)])
    return "".join(told.format(chain=not is_refused)).rstrip()


def _is_ours(file: str) -> bool:
    return Path(file).is_relative_to(Path(__file__).parents[1]) or file == "<string>"


def _is_machinery(step: TracebackType) -> bool:
    name = step.tb_frame.f_code.co_filename
    return (
        name.startswith("<frozen importlib")
        or name == __file__
        or step.tb_frame.f_globals.get("__name__", "").startswith("importlib")
    )


def _file_of(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "built in"


def _shadowed(module: ModuleType, name: str, folder: Path) -> str:
    """What to do if a library of the same name was imported instead of a file in the folder."""
    own = folder / f"{name.replace('.', '/')}.py"
    if not own.is_file() or Path(_file_of(module)).resolve() == own.resolve():
        return ""
    return f" {own.name} in this folder was not imported, because a library has its name: rename it."
