"""One look at a page: who looks, at which database, with which choices; and what a view answers.

Views are plain functions from a Visit to an Answer. They run in a thread, ask the App, and know nothing of ASGI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import parse_qsl, urlencode

from tenure.errors import UsageError
from tenure.model.access import groups_of, parse_scope
from tenure.model.frozen import frozen

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.web.pages.pulse import OneLook

Theme = Literal["auto", "light", "dark"]
Times = Literal["relative", "local", "utc"]

PREFERENCES: Final[Mapping[str, tuple[str, ...]]] = {
    "theme": ("auto", "light", "dark"),
    "times": ("relative", "local", "utc"),
    "keys": ("on", "off"),
    "live": ("on", "off"),
}
"""What a viewer may choose; the first of each is the default."""
JOB_COLUMNS: Final[Mapping[str, str]] = {
    "kind": "Kind",
    "says": "Progress or error",
    "queue": "Queue",
    "priority": "Priority",
    "attempt": "Attempt",
    "age": "Age",
    "next": "Next",
    "worker": "Worker",
    "tenant": "Tenant",
}
"""Columns of the list of jobs that a viewer may leave out, with their headings."""


@frozen
class Preferences:
    """A viewer's choices, kept in a cookie that the server reads."""

    theme: str = "auto"
    times: str = "relative"
    keys: str = "on"
    live: str = "on"
    hidden: str = ""
    """Columns of the list of jobs that are left out, joined by dots."""

    @property
    def columns(self) -> frozenset[str]:
        """Columns of the list of jobs that are shown."""
        return frozenset(JOB_COLUMNS) - frozenset(self.hidden.split("."))

    @classmethod
    def read(cls, cookie: str | None) -> Preferences:
        """From the cookie's text. What is not known is left at its default."""
        told = dict(parse_qsl(cookie or "", max_num_fields=16)) if cookie and len(cookie) < 500 else {}
        chosen = {name: told[name] for name, known in PREFERENCES.items() if told.get(name) in known}
        return cls(**chosen, hidden=_hidden(told.get("hidden", "").split(".")))

    def showing(self, columns: Sequence[str]) -> Preferences:
        """With these columns of the list of jobs and no others."""
        return replace(self, hidden=_hidden(name for name in JOB_COLUMNS if name not in columns))

    def changed(self, told: Mapping[str, str]) -> Preferences:
        """With those of `told` that are known."""
        return replace(self, **{name: told[name] for name, known in PREFERENCES.items() if told.get(name) in known})

    def cookie(self) -> str:
        return urlencode({one.name: getattr(self, one.name) for one in fields(self)})


def _hidden(names: Iterable[str]) -> str:
    return ".".join(name for name in names if name in JOB_COLUMNS)


@frozen
class Viewer:
    """Who looks: the name that goes into the audit, and what they may do."""

    name: str
    scopes: Sequence[str]
    has: Callable[[str], bool]
    covers: Callable[[str, str | None, str | None], bool]
    token_id: str | None = None
    """The token that the session was opened with."""

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups in whose name the viewer answers."""
        return groups_of(parse_scope(one) for one in self.scopes)

    @property
    def short_scopes(self) -> str:
        """The scopes in few words: what others imply is left out."""
        verbs = [scope.partition(":")[0] if scope.startswith(("enqueue", "worker")) else scope for scope in self.scopes]
        if "admin" in verbs:
            return "admin" + (", payloads" if "read:payload" in verbs else "")
        return ", ".join(dict.fromkeys(one for one in verbs if one != "read:meta" or len(verbs) == 1))

    def may(self, verb: str, *, queue: str | None = None, kind: str | None = None) -> bool:
        """Whether the viewer may do this: read:payload, enqueue, operate, approve, admin. With a queue or a kind,
        whether to jobs of these."""
        return self.has(verb) if queue is None and kind is None else self.covers(verb, queue, kind)


@frozen
class Place:
    """Which database this console shows."""

    environment: str
    """production, staging, development."""
    database: str


@frozen
class Visit:
    """One request for a page."""

    app: App
    viewer: Viewer
    place: Place
    pulse: OneLook
    path: str
    """Below the console's root, as `/jobs`."""
    root: str
    """The console's own path, as `/ui`."""
    csrf: str
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, Sequence[str]] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    preferences: Preferences = field(default_factory=Preferences)
    notice: str | None = None
    """What the last action did, shown once."""
    origin: str = ""
    """scheme://host of this server, for lines to copy."""
    session: str | None = None
    """The digest of the viewer's own session."""
    take_jobs: Callable[[int], None] = lambda _jobs: None
    """Make room for so many jobs in the tenant's quotas, before they are queued. Raises: Problem 429."""

    def asked(self, name: str, default: str = "") -> str:
        """A query parameter, stripped."""
        return self.query.get(name, default).strip()

    def given(self, name: str, default: str = "") -> str:
        """A field of the form, stripped."""
        values = self.form.get(name)
        return values[0].strip() if values else default

    def reason(self) -> str:
        """The reason of the form, for acts that need one. Raises: UsageError."""
        reason = self.given("reason")
        if not reason:
            raise UsageError("A reason is needed: it goes into the audit. Nothing was changed.")
        return reason

    def link(self, path: str, /, **query: Any) -> str:
        """An address within the console; empty parameters are left out."""
        told = {name: value for name, value in query.items() if value not in (None, "")}
        return self.root + path + ("?" + urlencode(told) if told else "")


@frozen
class Shown:
    """A page: template and what it shows."""

    template: str
    context: Mapping[str, Any]
    status: int = 200


@frozen
class Moved:
    """Done: look there now (303). `notice` is shown once on the next page."""

    to: str
    notice: str = ""
    preferences: Preferences | None = None


@frozen
class Sent:
    """A file to keep, sent piece by piece as it is made."""

    body: Iterable[str]
    media_type: str
    filename: str


Answer = Shown | Moved | Sent
View = Callable[[Visit], Answer]


@frozen
class PageRoute:
    """One page or action of the console. `scope` is asked of the viewer before the view is called."""

    verb: Literal["GET", "POST"]
    path: str
    view: View
    scope: str = "read:meta"
    act: str | None = None
    """The word for the audit; every POST has one."""
