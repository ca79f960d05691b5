"""The one place where what a PostgreSQL driver raises becomes an error of ours.

psycopg, asyncpg and psycopg2 are known by their SQLSTATE, also inside the wrappers that SQLAlchemy and Django put
around them. Our own functions refuse with TN002 to TN011 and say the sentence themselves. A password never shows:
neither in our sentence nor, by the chain of causes, in a traceback.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from tenure import errors
from tenure.errors import TenureError, nearest
from tenure.model.frozen import frozen

_DRIVERS: Final = frozenset({"psycopg", "psycopg2", "asyncpg"})
_WRAPPERS: Final = frozenset({"sqlalchemy", "django"})
_SPENT: Final = frozenset({"PendingRollbackError", "TransactionManagementError"})
"""What SQLAlchemy and Django raise when the transaction has failed before."""

_REPEAT: Final = "Repeat the call: every request is safe to repeat."


@contextmanager
def driver_errors(url: str | None = None) -> Iterator[None]:
    """Let no driver error out: what is raised inside leaves as an error of ours. Everything else passes as it is."""
    try:
        yield
    except Exception as exc:
        if not is_driver_error(exc):
            raise
        raise translate(exc, url) from (exc if is_safe(exc, url) else None)


def is_driver_error(error: BaseException) -> bool:
    """Whether a driver raised `error`, or what wraps a driver did."""
    return type(error).__name__ in _SPENT or _driver_error(error) is not None


def translate(error: BaseException, url: str | None = None) -> TenureError:
    """The error of ours that a driver's error stands for."""
    if type(error).__name__ in _SPENT:
        return _failed_before()
    found = _driver_error(error) or error
    said = _Said.by(found)
    where = location(url)
    if said.state is None:
        return _without_state(found, redact(said.message, url), where)
    return _by_state(said, where)


def is_safe(error: BaseException, url: str | None) -> bool:
    """Whether `error` may stand in a traceback: its text, and that of its causes, holds no password."""
    seen: BaseException | None = error
    while seen is not None:
        if redact(str(seen), url) != str(seen):
            return False
        seen = seen.__cause__ or seen.__context__
    return True


def location(url: str | None) -> str:
    """Where the database is, for people: host, port and name, never the login."""
    known = _parameters(url)
    if not known:
        return "PostgreSQL"
    name = f", database {known['dbname']!r}" if "dbname" in known else ""
    return f"PostgreSQL at {' or '.join(_hosts(known))}{name}"


def _hosts(known: dict[str, Any]) -> list[str]:
    """The hosts of a URL, each with its port. Several of them share one port, or have one each."""
    hosts = str(known.get("host") or known.get("hostaddr") or "the local socket").split(",")
    ports = str(known.get("port") or "").split(",")
    ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    return [f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=True)]


def redact(text: str, url: str | None = None) -> str:
    """`text` without the password of `url`, nor anything else that looks like one in a URL."""
    password = _parameters(url).get("password")
    if password:
        text = text.replace(str(password), "***")
    text = re.sub(r"(://[^\s:/@]*:)[^\s@]+@", r"\1***@", text)
    return re.sub(r"(?i)(password\s*=\s*)(?!\*\*\*)('[^']*'|[^\s&]+)", r"\1***", text)


@frozen
class _Said:
    """What the server said, whichever driver carried it."""

    state: str | None
    message: str
    detail: str | None
    hint: str | None
    constraint: str | None

    @classmethod
    def by(cls, error: BaseException) -> _Said:
        diag = getattr(error, "diag", None)  # psycopg and psycopg2; asyncpg has attributes of its own

        def ask(diag_name: str, name: str) -> Any:
            return getattr(diag, diag_name, None) or getattr(error, name, None)

        return cls(
            state=getattr(error, "sqlstate", None) or getattr(error, "pgcode", None),
            message=ask("message_primary", "message") or str(error),
            detail=ask("message_detail", "detail"),
            hint=ask("message_hint", "hint"),
            constraint=ask("constraint_name", "constraint_name"),
        )

    def facts(self) -> dict[str, Any]:
        """The detail of our own refusals, which is a JSON object."""
        try:
            found = json.loads(self.detail or "{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


def _driver_error(error: BaseException) -> BaseException | None:
    """The driver's own error, at the bottom of what wraps it."""
    seen: BaseException | None = error
    found: BaseException | None = None
    while seen is not None:
        rooms = {cls.__module__.partition(".")[0] for cls in type(seen).__mro__}
        if rooms & _DRIVERS:
            return seen
        if not rooms & _WRAPPERS:
            break
        if getattr(seen, "sqlstate", None):
            found = seen
        seen = getattr(seen, "orig", None) or seen.__cause__
    return found


def _failed_before() -> TenureError:
    return errors.UsageError(
        "The transaction that was handed in has already failed, so nothing can be done in it any more. "
        "Roll it back, or roll back to a savepoint, and enqueue in the new one."
    )


def _by_state(said: _Said, where: str) -> TenureError:
    state = said.state or ""
    if state.startswith("TN"):
        return _refusal(said)
    make = _STATES.get(state) or _CLASSES.get(state[:2])
    if make is not None:
        return make(said, where)
    return errors.InternalError(
        f"{where} refused a statement of ours with SQLSTATE {state}: {said.message}. "
        "That should not happen; please report it with this sentence."
    )


def _refusal(said: _Said) -> TenureError:
    """What our own functions refuse. They write the sentence; the classes that make their own get the facts."""
    facts = said.facts()
    if said.state == "TN002":
        return errors.GateClosed(str(facts.get("gate", "?")), str(facts.get("act", "this")))
    sentence = f"{said.message} {said.hint}" if said.hint else said.message
    if said.state == "TN003":
        name = str(facts.get("queue", "?"))
        return errors.UnknownQueue(
            f"Queue {name!r} does not exist.{nearest(name, facts.get('known', []))} "
            f"Create it with `tenure queues set {name}`, or declare it in the app."
        )
    return _REFUSALS.get(said.state or "", errors.InternalError)(sentence)


_REFUSALS: Final[dict[str, type[TenureError]]] = {
    "TN004": errors.KeyConflict,
    "TN005": errors.KeyRequired,
    "TN006": errors.ForbiddenKey,
    "TN007": errors.InvalidArgument,
    "TN008": errors.IllegalMove,
    "TN009": errors.NotFound,
    "TN010": errors.Forbidden,
    "TN011": errors.Outdated,
    "TN020": errors.StoreMoved,
}


def _unavailable(said: _Said, where: str) -> TenureError:
    return errors.StoreUnavailable(
        f"{where} went away or cannot take part now: {said.message}. "
        f"Whether a write in flight took effect is not known. {_REPEAT}"
    )


def _not_prepared(said: _Said, where: str) -> TenureError:
    return errors.ConfigError(
        f"{where} does not keep what a connection has prepared: {said.message}. Nothing was changed. There is a "
        "pooler in transaction mode before it; add `tenure_pooler=1` to the URL, as in postgresql://host/name?tenure_pooler=1."
    )


def _busy(said: _Said, where: str) -> TenureError:
    return errors.StoreBusy(f"{where} could not carry this out in time: {said.message}. Nothing was changed. {_REPEAT}")


def _disk_full(said: _Said, where: str) -> TenureError:
    return errors.DiskFull(
        f"The disk of {where} is full: {said.message}. Nothing was changed. Make room, then repeat the call."
    )


def _read_only(said: _Said, where: str) -> TenureError:
    return errors.ReadOnly(
        f"{where} cannot be written: {said.message}. Nothing was changed. It is a standby or set to read-only; "
        "connect to the primary (`target_session_attrs=read-write` in the URL finds it)."
    )


def _denied(said: _Said, where: str) -> TenureError:
    return errors.AccessDenied(
        f"{where} refused access: {said.message}. Check user and password in the URL, or grant the login one of "
        "the roles tenure_producer, tenure_worker, tenure_reader, tenure_operator, tenure_admin."
    )


def _missing(said: _Said, where: str) -> TenureError:
    if "tenure" not in said.message:
        return errors.InternalError(f"{where} does not know what a statement of ours names: {said.message}.")
    return errors.SchemaBehind(
        f"{where} has no schema of Tenure, or an older one than this version needs: {said.message}. "
        "Run `tenure migrate`."
    )


def _corrupt(said: _Said, where: str) -> TenureError:
    return errors.Corrupt(
        f"{where} reports damaged data: {said.message}. Stop writing to it and restore from a backup."
    )


def _bad_value(said: _Said, where: str) -> TenureError:
    return errors.InvalidArgument(f"{where} cannot hold a value: {said.message}. Nothing was changed.")


def _bad_text(said: _Said, where: str) -> TenureError:
    return errors.InvalidArgument(
        f"{where} cannot hold this text: {said.message}. Nothing was changed. "
        "Take NUL characters and lone surrogates out."
    )


def _too_deep(said: _Said, where: str) -> TenureError:
    return errors.InvalidPayload(
        f"{where} cannot hold this value: {said.message}. Nothing was changed. Nest it less deeply."
    )


def _broken_rule(said: _Said, where: str) -> TenureError:
    rule = said.constraint or ""
    if rule.endswith("payload_guarded"):
        return errors.ForbiddenKey(
            "The payload carries a key that its queue forbids. Nothing was changed. Pass a reference."
        )
    return errors.InvalidArgument(f"A value breaks the rule {rule!r} of {where}: {said.message}. Nothing was changed.")


def _unknown_database(said: _Said, where: str) -> TenureError:
    return errors.StoreUnavailable(
        f"{where} does not exist: {said.message}. Create it with `createdb`, or correct the name in the URL."
    )


_Make = Callable[[_Said, str], TenureError]

_STATES: Final[dict[str, _Make]] = {
    "22021": _bad_text,  # character not in repertoire
    "22P05": _bad_text,  # untranslatable character
    "23502": _broken_rule,
    "23514": _broken_rule,
    "25006": _read_only,
    "25P02": lambda _said, _where: _failed_before(),
    "25P03": _unavailable,  # the server gave up an idle transaction
    "25P04": _unavailable,  # or one that took too long
    "26000": _not_prepared,
    "3D000": _unknown_database,
    "3F000": _missing,
    "42501": _denied,
    "42704": _missing,
    "42883": _missing,
    "42P01": _missing,
    "42P05": _not_prepared,
    "53100": _disk_full,
    "54001": _too_deep,
    "55P03": _busy,
    "57014": _busy,
    "XX001": _corrupt,
    "XX002": _corrupt,
}

_CLASSES: Final[dict[str, _Make]] = {
    "08": _unavailable,
    "22": _bad_value,
    "28": _denied,
    "40": _busy,
    "53": _unavailable,
    "54": _bad_value,
    "55": _unavailable,
    "57": _unavailable,
    "58": _unavailable,
}


_PASSWORD_PART = re.compile(r'(?<=found in )"[^"]*"|(?<=token: )"[^"]*"')
"""What libpq quotes of a URL that it cannot read may be the password: the usual reason is a % or a blank in it."""


def _without_state(error: BaseException, message: str, where: str) -> TenureError:
    """A connection that failed or was never made, and what the driver itself refuses: there are only words to go by."""
    text = _without_question(" ".join(message.split()))
    for pattern, make in _WORDS:
        if re.search(pattern, text, re.IGNORECASE):
            return make(_Said(None, text, None, None, None), where)
    name = type(error).__name__
    if name == "DataError":
        return _bad_value(_Said(None, text, None, None, None), where)
    if name in {"ProgrammingError", "ClientConfigurationError"}:
        return errors.ConfigError(
            f"The database URL cannot be read: {_PASSWORD_PART.sub('a part (not shown)', text)}. It looks like "
            "postgresql://user@host:5432/name, with % written as %25 and a blank as %20."
        )
    return _unavailable(_Said(None, text, None, None, None), where)


def _without_question(text: str) -> str:
    """libpq asks whether the server is running; what to do is said by us."""
    return re.sub(r"\s*Is the server running (?:on that host|locally) and accepting [^?]*\?", "", text)


def _unreachable(said: _Said, where: str) -> TenureError:
    return errors.StoreUnavailable(
        f"{where} cannot be reached: {said.message}. Start the server, or correct host and port in the URL."
    )


_WORDS: Final[tuple[tuple[str, _Make], ...]] = (
    (r"password|authentication failed|pg_hba\.conf|role \S+ does not exist|not permitted to log in", _denied),
    (r"database \S+ does not exist", _unknown_database),
    (r"certificate|SSL", _unreachable),
    (
        r"refused|translate host|resolve host|No such file|Name or service|timeout|timed out|No route|unreachable",
        _unreachable,
    ),
)


def _parameters(url: str | None) -> dict[str, Any]:
    """The settings in a URL; none if it cannot be read."""
    if url is None:
        return {}
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        return dict(conninfo_to_dict(url))
    except (ProgrammingError, UnicodeError):
        return {}
