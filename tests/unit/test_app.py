"""An App before a database is opened: URLs, handlers, queues."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, get_type_hints

import pydantic
import pytest

import tenure
from tenure.model.url import shown_url
from tenure.worker.config import WorkerConfig


class Welcome(pydantic.BaseModel):
    user_id: int


@pytest.fixture
def app() -> tenure.App:
    return tenure.App("sqlite:///never-opened.db")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("jobs.db", "For a SQLite file write sqlite:///jobs.db."),
        ("sqllite:///jobs.db", "there is no engine 'sqllite'. Did you mean 'sqlite'?"),
        ("mysql://host/db", "Known: postgres, postgresql, sqlite"),
        ("", "has no '://'"),
    ],
)
def test_a_url_of_no_known_engine_is_refused_where_it_is_written(url: str, sentence: str) -> None:
    with pytest.raises(tenure.ConfigError) as caught:
        tenure.App(url)

    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:secret@host/db", "postgresql://u:***@host/db"),
        ("postgresql://u:se:cr@et@host/db", "postgresql://u:***@host/db"),
        ("postgresql://host/db?user=u&password=secret&x=1", "postgresql://host/db?user=u&password=***&x=1"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("sqlite:///a.db", "sqlite:///a.db"),
    ],
)
def test_passwords_are_never_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown
    assert "secret" not in repr(tenure.App(url))


def test_without_a_url_the_environment_decides_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENURE_URL", raising=False)
    app = tenure.App()

    with pytest.raises(tenure.ConfigError, match="No database is named"):
        app.enqueue("kind")
    monkeypatch.setenv("TENURE_URL", "sqlite:///there.db")

    assert app.url == "sqlite:///there.db"


def test_an_unknown_migrate_mode_is_refused() -> None:
    with pytest.raises(tenure.ConfigError, match="'auto', 'always', 'existing' or 'never'"):
        tenure.App("sqlite:///a.db", migrate="yes")  # type: ignore[arg-type]


def test_making_an_app_with_handlers_touches_no_file(tmp_path: Path) -> None:
    app = tenure.App(f"sqlite:///{tmp_path}/jobs.db")

    @app.job
    def handler(payload: Welcome) -> None: ...

    handler.new(Welcome(user_id=1))

    assert not list(tmp_path.iterdir())


def test_a_handler_stays_callable_and_keeps_its_name(app: tenure.App) -> None:
    @app.job
    def double(payload: int) -> int:
        """Twice as much."""
        return payload * 2

    @app.job(queue="mail")
    async def treble(payload: int, ctx: tenure.Context) -> int:
        return payload * 3

    assert double(4) == 8
    assert (double.kind, double.queue, double.__name__, double.__doc__) == (
        "double",
        "default",
        "double",
        "Twice as much.",
    )
    assert asyncio.run(treble(4, None)) == 12  # type: ignore[arg-type]
    assert (treble.kind, treble.queue) == ("treble", "mail")
    assert repr(treble) == "<job 'treble' on queue 'mail'>"


def test_the_options_of_a_handler_are_kept(app: tenure.App) -> None:
    @app.job(
        queue="slow",
        kind="big.report",
        max_attempts=9,
        priority=-3,
        timeout=timedelta(minutes=2),
        lease=30,
        backoff=tenure.Backoff("constant", base_seconds=7),
        isolate=True,
    )
    def report(payload: Welcome) -> None: ...

    handler = app.registry.find("big.report")

    assert (handler.queue, handler.max_attempts, handler.priority) == ("slow", 9, -3)
    assert (handler.timeout_seconds, handler.lease_seconds, handler.mode) == (120, 30, "process")
    job = report.new(Welcome(user_id=1))
    assert (job.queue, job.max_attempts, job.priority) == ("slow", 9, -3)
    assert job.backoff is not None
    assert '"base_seconds":7' in job.backoff
    assert report.options(queue="other", max_attempts=1).new(Welcome(user_id=1)).queue == "other"


def test_how_a_handler_runs_follows_from_the_function(app: tenure.App) -> None:
    @app.job
    def in_a_thread() -> None: ...

    @app.job
    async def on_the_loop() -> None: ...

    assert in_a_thread.handler.mode == "thread"
    assert on_the_loop.handler.mode == "async"
    assert not in_a_thread.handler.wants_payload


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_attempts": 0}, "`max_attempts`"),
        ({"timeout": 0}, "`timeout`"),
        ({"lease": -1}, "`lease`"),
        ({"queue": ""}, "`queue`"),
        ({"kind": "a\nb"}, "`kind`"),
        ({"backoff": "fast"}, "`backoff`"),
    ],
)
def test_a_handler_with_impossible_options_is_refused(app: tenure.App, options: dict[str, Any], sentence: str) -> None:
    def handler() -> None: ...

    with pytest.raises(tenure.InvalidArgument, match=sentence):
        app.job(**options)(handler)


def test_a_lambda_needs_a_kind(app: tenure.App) -> None:
    with pytest.raises(tenure.HandlerError, match="Give it one with `kind=`"):
        app.job(lambda: None)

    assert app.job(kind="tick")(lambda: None).kind == "tick"


def test_two_functions_cannot_share_a_kind_but_a_reload_may(app: tenure.App) -> None:
    def make() -> Any:
        def handler(payload: int) -> None: ...

        return handler

    app.job(make())
    app.job(make())

    with pytest.raises(tenure.HandlerError, match="already handled by"):
        app.job(kind="handler")(lambda: None)


def test_a_registered_kind_has_its_payload_checked_by_every_way_in(app: tenure.App) -> None:
    @app.job(queue="mail")
    def welcome(payload: Welcome) -> None: ...

    assert app.new_job("welcome", {"user_id": 7}).payload == '{"user_id":7}'
    assert app.new_job("welcome", Welcome(user_id=7)).queue == "mail"
    by_function: Callable[[Any], Any] = lambda payload: welcome.enqueue(payload)  # noqa: E731, PLW0108 - untyped
    for enqueue in (by_function, lambda payload: app.enqueue("welcome", payload)):
        with pytest.raises(tenure.InvalidPayload, match=r"\$\.user_id: expected int, got str"):
            enqueue({"user_id": "seven"})
    with pytest.raises(tenure.InvalidPayload, match="missing"):
        app.enqueue("welcome")


def test_a_kind_of_another_language_is_taken_as_it_is(app: tenure.App) -> None:
    job = app.new_job("rust.thing", {"any": ["thing"]})

    assert (job.queue, job.payload, job.kind) == ("default", '{"any":["thing"]}', "rust.thing")
    assert app.new_job("rust.thing").payload == "{}"
    assert app.new_job("rust.thing", None).payload == "null"


def test_limits_hold_for_every_payload() -> None:
    app = tenure.App("sqlite:///a.db", limits=tenure.Limits(payload_bytes=20))

    with pytest.raises(tenure.InvalidPayload, match="the limit is 20"):
        app.new_job("kind", {"text": "x" * 20})


def test_queues_are_declared_by_name_policy_or_settings(app: tenure.App) -> None:
    app.queue("a", tenure.QueuePolicy(max_attempts=9))
    app.queue("b", max_attempts=2, key_scope="forever")
    app.queue("c", tenure.QueuePolicy(max_attempts=9), priority_order="low")

    @app.job(queue="d")
    def handler() -> None: ...

    @app.job(queue="a")
    def other() -> None: ...

    assert app.registry.queues["a"].max_attempts == 9
    assert (app.registry.queues["b"].max_attempts, app.registry.queues["b"].key_scope) == (2, "forever")
    assert (app.registry.queues["c"].max_attempts, app.registry.queues["c"].priority_order) == (9, "low")
    assert app.registry.queues["d"] == tenure.QueuePolicy()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_atempts": 3}, "Did you mean 'max_attempts'?"),
        ({"key_scope": "for ever"}, "Did you mean 'forever'?"),
        ({"lease_seconds": 0}, "`lease_seconds` is 0"),
        ({"lease_seconds": 90_000}, "is above `lease_max_seconds`"),
        ({"max_attempts": 0}, "`max_attempts`"),
        ({"concurrency": 0}, "`concurrency`"),
        ({"backoff": tenure.Backoff(cap_seconds=-1)}, "`backoff.cap_seconds`"),
        ({"aging_seconds": 0}, "`aging_seconds`"),
        ({"retain_seconds": -1}, "`retain_seconds`"),
    ],
)
def test_a_queue_with_impossible_settings_is_refused(app: tenure.App, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(tenure.InvalidArgument) as caught:
        app.queue("q", **settings)

    assert sentence in str(caught.value)


def test_declaring_the_default_queue_would_change_nothing_and_says_so(app: tenure.App) -> None:
    with pytest.raises(tenure.ConfigError, match=r"app\.queues.set"):
        app.queue("default", max_attempts=9)


def public_names(client: object) -> set[str]:
    return {name for name in dir(client) if not name.startswith("_")}


def test_the_async_view_has_the_operations_of_the_app_under_the_same_names(app: tenure.App) -> None:
    own = public_names(app)
    view = public_names(app.aio)

    assert view <= own
    for name in sorted(view):
        sync, awaited = getattr(tenure.App, name, None), getattr(tenure.AsyncApp, name, None)
        if not callable(sync) or inspect.signature(sync) == inspect.signature(tenure.App.new_job):
            continue  # a group of operations, or `new_job`, which asks no store
        assert not inspect.iscoroutinefunction(sync), name
        assert inspect.iscoroutinefunction(awaited), name
        assert inspect.signature(sync) == inspect.signature(awaited), name
        assert awaited.__name__ == name
        assert awaited.__doc__, name
    assert {"enqueue", "claim", "heartbeat", "complete", "fail", "release", "get", "jobs", "cancel", "revive"} <= view
    assert {"run_worker", "close", "access", "gates", "leases", "schedules", "profiles", "workflows"} <= view


@pytest.mark.parametrize(
    "group",
    [
        "access",
        "approvals",
        "budgets",
        "dead_letters",
        "gates",
        "leases",
        "limits",
        "memory",
        "profiles",
        "queues",
        "schedules",
        "steps",
        "workers",
        "workflows",
    ],
)
def test_the_groups_of_both_views_have_the_same_names(app: tenure.App, group: str) -> None:
    assert public_names(getattr(app, group)) == public_names(getattr(app.aio, group))


def test_a_client_has_few_enough_names_to_read(app: tenure.App) -> None:
    assert len(public_names(app)) <= 65
    assert len(public_names(app.aio)) <= 51


@pytest.mark.parametrize("name", ["Permanent", "NotApproved", "RetryAfter", "Snooze", "RateLimited"])
def test_a_traceback_names_what_a_handler_raises_as_users_import_it(name: str) -> None:
    signal = getattr(tenure, name)

    (line,) = traceback.format_exception_only(signal(1, "busy"))

    assert line.startswith(f"tenure.{name}: ")


def test_help_shows_the_result_of_an_operation() -> None:
    assert inspect.signature(tenure.App.claim).return_annotation == "list[Grant]"
    assert inspect.signature(tenure.AsyncApp.prune).return_annotation == "Pruned"
    for view in (tenure.App, tenure.AsyncApp):
        for name in public_names(view):
            member = getattr(view, name)
            if callable(member):
                assert "Steps" not in str(inspect.signature(member)), name


def test_the_async_view_shares_handlers_queues_and_the_store(app: tenure.App) -> None:
    @app.job(queue="mail", max_attempts=3)
    def welcome(payload: Welcome) -> None: ...

    job = app.aio.new_job("welcome", {"user_id": 7})

    assert app.aio is app.aio
    assert (job.queue, job.max_attempts) == ("mail", 3)
    with pytest.raises(tenure.InvalidPayload):
        app.aio.new_job("welcome", {"user_id": "x"})


def test_a_process_claims_under_one_worker_id(tmp_path: Path) -> None:
    with tenure.App(f"sqlite:///{tmp_path}/a.db") as one, tenure.App(f"sqlite:///{tmp_path}/a.db") as other:
        one.enqueue_many([("kind", None)] * 3)
        first, second, third = (app.claim()[0].worker for app in (one, one, other))

    assert first == second
    assert first != third


def test_postgresql_without_its_driver_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "psycopg.py").write_text("raise ModuleNotFoundError(\"No module named 'psycopg'\", name='psycopg')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import tenure\n"
        "try: tenure.App('postgresql://localhost/x').enqueue('k')\n"
        "except tenure.MissingExtra as exc: print(exc)"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert said.strip() == "PostgreSQL needs the extra 'postgres'. Install it with: pip install 'tenure[postgres]'"


@pytest.mark.parametrize(
    ("cron", "options", "sentence"),
    [
        ("not cron", {}, "Schedule 'daily'"),
        ("0 7 * * *", {"tz": "Europe/Rom"}, "Schedule 'daily'"),
        ("0 7 * * *", {"missed": "some"}, "is not one of skip, one, all"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(app: tenure.App, cron: str, options: Any, sentence: str) -> None:
    with pytest.raises(tenure.InvalidArgument) as caught:
        app.schedule("daily", cron, "kind", **options)

    assert sentence in str(caught.value)
    assert app._state.declared_schedules == {}


def test_a_schedules_payload_is_checked_when_it_is_declared(app: tenure.App) -> None:
    @app.job(queue="mail", priority=4)
    def welcome(payload: Welcome) -> None: ...

    with pytest.raises(tenure.InvalidPayload, match=r"\$\.user_id"):
        app.schedule("daily", "0 7 * * *", welcome, {"user_id": "x"})
    declared = app.schedule("daily", "0 7 * * *", welcome, Welcome(user_id=1))

    assert (declared.kind, declared.queue, declared.payload, declared.priority) == (
        "welcome",
        "mail",
        '{"user_id":1}',
        4,
    )


def test_a_worker_with_an_unknown_setting_is_refused(app: tenure.App) -> None:
    misspelled: Any = {"poll_second": 1}

    with pytest.raises(tenure.ConfigError, match="Did you mean 'poll_seconds'"):
        app.worker(**misspelled)


def test_the_settings_of_a_worker_are_the_fields_of_its_configuration() -> None:
    """An editor offers them, and a type checker refuses others, for `app.run_worker` and its like."""
    own = [field for field in get_type_hints(WorkerConfig) if field not in {"queues", "concurrency"}]
    hints = get_type_hints(WorkerConfig)

    assert list(tenure.WorkerSettings.__annotations__) == own
    assert get_type_hints(tenure.WorkerSettings) == {name: hints[name] for name in own}
