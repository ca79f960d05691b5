"""The Flask extension: handlers in the application's context, the app at hand, errors as problem documents."""

from __future__ import annotations

import pytest
from flask import Flask, current_app, has_app_context

import tenure
from tenure.integrations.flask import Tenure, get_tenure
from tenure.testing import drain


@pytest.fixture
def queue(url: str) -> tenure.App:
    return tenure.App(url)


@pytest.fixture
def site(queue: tenure.App) -> Flask:
    site = Flask("shop")
    site.config["GREETING"] = "hello"
    Tenure(queue, site)

    @queue.job
    def greet(name: str) -> str:
        return f"{current_app.config['GREETING']} {name}"

    @queue.job
    async def greet_async(name: str) -> str:
        return f"{current_app.config['GREETING']} {name}"

    @site.post("/<kind>/<name>")
    def enqueue(kind: str, name: str) -> str:
        return get_tenure().enqueue(kind, int(name) if name.isdecimal() else name).id

    return site


@pytest.mark.parametrize("kind", ["greet", "greet_async"])
def test_handlers_run_in_the_context_of_the_application(site: Flask, queue: tenure.App, kind: str) -> None:
    with queue:
        job_id = site.test_client().post(f"/{kind}/ann").text
        drain(queue)

        assert queue.get(job_id).result == "hello ann"
    assert not has_app_context()


def test_a_factory_that_makes_several_applications_leaves_handlers_in_the_last(queue: tenure.App) -> None:
    """Each one added a context around every handler, and kept the applications before it alive."""
    seen: list[str] = []

    @queue.job
    def look() -> None:
        seen.append(current_app.name)

    for name in ("first", "second", "third"):
        Tenure(queue).init_app(Flask(name))
    with queue:
        look.enqueue()
        drain(queue)

    assert seen == ["third"]
    assert len(queue.registry.middleware) == 1


def test_errors_are_problem_documents(site: Flask, queue: tenure.App) -> None:
    with queue:
        answer = site.test_client().post("/greet/7")

    assert answer.status_code == 422
    assert answer.mimetype == "application/problem+json"
    assert answer.get_json()["code"] == "invalid_payload"


def test_a_site_names_its_database_in_its_settings(url: str) -> None:
    site = Flask("shop")
    site.config["TENURE_URL"] = url
    extension = Tenure()
    extension.init_app(site)

    with site.app_context(), get_tenure() as queue:
        assert queue.jobs().items == []


def test_what_is_missing_is_said() -> None:
    with pytest.raises(tenure.ConfigError, match="TENURE_URL"):
        Tenure().init_app(Flask("shop"))
    with Flask("shop").app_context(), pytest.raises(tenure.ConfigError, match="init_app"):
        get_tenure()
