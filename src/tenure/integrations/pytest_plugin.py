"""The pytest plugin: your app on a queue that lasts as long as a test.

    # pyproject.toml: [tool.pytest.ini_options] tenure_app = "myproject.tasks:app"

    def test_a_welcome_is_sent(tenure_app, tenure_drain, tenure_assert_enqueued):
        sign_up("ann@example.org")
        tenure_assert_enqueued("welcome", {"user_id": 7})
        tenure_drain()

pytest loads this module in every project that has Tenure installed, so it imports nothing of Tenure's until a test asks
for one of its fixtures, adds no hook that runs per test, and every name that it defines begins with `tenure_`.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.model.job import Job
    from tenure.testing import CrashPoint, ManualClock

APP_OPTION = "tenure_app"
URL_OPTION = "tenure_test_url"
URL_VARIABLE = "TENURE_TEST_URL"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The settings of the plugin."""
    parser.addini(APP_OPTION, "Tenure: your app as module:attribute, which `tenure_app` points at a temporary store")
    parser.addini(URL_OPTION, f"Tenure: a PostgreSQL database for tests; SQLite if empty. {URL_VARIABLE} wins")


@pytest.fixture
def tenure_app_under_test(request: pytest.FixtureRequest) -> App | None:
    """The app that `tenure_app` points at a temporary store: the setting `tenure_app`, or an empty app.

    Define a fixture of this name to choose it in code.
    """
    named = str(request.config.getini(APP_OPTION)).strip()
    return _load(named) if named else None


@pytest.fixture
def tenure_url(request: pytest.FixtureRequest) -> str | None:
    """The PostgreSQL database of the tests, or None for a temporary SQLite file. Define your own to choose it in code.

    The database must have no schema `tenure`: it is made for a test and dropped after it.
    """
    return os.environ.get(URL_VARIABLE) or str(request.config.getini(URL_OPTION)).strip() or None


@pytest.fixture
def tenure_clock() -> ManualClock:
    """The clock of the test's store. It stands still until `advance` moves it; a test that asks for none has time."""
    from tenure.testing import ManualClock

    return ManualClock()


@pytest.fixture
def tenure_app(
    request: pytest.FixtureRequest, tenure_app_under_test: App | None, tenure_url: str | None
) -> Iterator[App]:
    """Your app on a real, empty store that is gone after the test. Follows `tenure_clock` if the test asks for it."""
    from tenure.testing import temporary_app

    clock = request.getfixturevalue("tenure_clock") if "tenure_clock" in request.fixturenames else None
    with temporary_app(tenure_app_under_test, url=tenure_url, clock=clock) as app:
        yield app


@pytest.fixture
def tenure_drain(tenure_app: App) -> Callable[..., None]:
    """Runs every job that is due: `tenure_drain()`. Raises JobFailed if a handler raised. See tenure.testing.drain."""
    from tenure.testing import drain

    def run(**settings: Any) -> None:
        drain(tenure_app, **settings)

    return run


@pytest.fixture
def tenure_adrain(tenure_app: App) -> Callable[..., Awaitable[None]]:
    """The same in async tests: `await tenure_adrain()`."""
    from tenure.testing import adrain

    async def run(**settings: Any) -> None:
        await adrain(tenure_app, **settings)

    return run


@pytest.fixture
def tenure_assert_enqueued(tenure_app: App) -> Callable[..., list[Job]]:
    """Asserts that jobs were enqueued, and answers them. See tenure.testing.assert_enqueued."""
    from tenure.testing import assert_enqueued

    def check(*args: Any, **wanted: Any) -> list[Job]:
        __tracebackhide__ = True
        return assert_enqueued(tenure_app, *args, **wanted)

    return check


@pytest.fixture
def tenure_crash_at() -> Iterator[Callable[..., CrashPoint]]:
    """Makes a named point of the stores break once in this test: `tenure_crash_at("after_commit_before_reply")`.

    See tenure.testing.crash_at.
    """
    from tenure.testing import crash_at

    with ExitStack() as armed:

        def arm(name: str, **settings: Any) -> CrashPoint:
            return armed.enter_context(crash_at(name, **settings))

        yield arm


def _load(named: str) -> App:
    from importlib import import_module

    from tenure.app import App

    module, _, attribute = named.partition(":")
    found: Any = None
    if module and attribute:
        found = getattr(import_module(module), attribute, None)
    if not isinstance(found, App):
        raise pytest.UsageError(
            f"The pytest setting `{APP_OPTION}` is {named!r}, which names no tenure.App. "
            f'Write it as module:attribute, as in {APP_OPTION} = "myproject.tasks:app".'
        )
    return found
