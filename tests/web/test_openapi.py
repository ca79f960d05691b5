"""The OpenAPI document is true: whatever fits it, and what does not, is answered as it says, and never by 5xx."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import tenure
from tenure.model.access import EVERYTHING
from tenure.web.application import table
from tests.web.conftest import Server

HOST = "testserver"
LONG = os.environ.get("TENURE_LONG") == "1"
SKIPPED = {"/api/v1/events"}
"""Its answer does not end."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path: Path = tmp_path_factory.mktemp("openapi") / "jobs.db"
    with tenure.App(f"sqlite:///{path}") as app:
        app.enqueue_many([("k", {"n": n}) for n in range(3)])
        yield Server(app, hosts=[HOST, "localhost"])


@pytest.fixture(scope="module")
def token(served: Server) -> str:
    return served.token(*EVERYTHING)


@pytest.fixture(scope="module")
def api_schema(served: Server, token: str) -> schemathesis.BaseSchema:
    found: schemathesis.BaseSchema = schemathesis.openapi.from_asgi(
        "/api/v1/openapi.json", served.asgi, headers={"Authorization": f"Bearer {token}", "Host": HOST}
    )
    return found


LEAKS = re.compile(r"psycopg|sqlite|Traceback|SELECT |INSERT |tenure_job|\.py\b|/(home|tmp|root)/", re.IGNORECASE)
"""What an error must not tell of the inside."""
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.parametrize("label", [f"{route.verb} {route.path}" for route in table() if route.path not in SKIPPED])
def test_every_answer_is_one_that_the_document_names(
    api_schema: schemathesis.BaseSchema, token: str, label: str
) -> None:
    verb, _, path = label.partition(" ")

    @hypothesis.given(case=api_schema[path][verb].as_strategy())
    @hypothesis.settings(
        max_examples=200 if LONG else 5,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
        database=None,
    )
    def ask(case: Case[Any]) -> None:
        for part in (case.body, case.query):
            if isinstance(part, dict) and "wait" in part:
                part["wait"] = 0
        response = case.call(headers={"Authorization": f"Bearer {token}", "Host": HOST})
        case.validate_response(response, checks=CHECKS)
        if response.status_code >= 400:
            assert not LEAKS.search(response.text), response.text

    ask()


def test_the_document_is_openapi_3_1_and_names_every_route(small: Server) -> None:
    from tenure.web.api.server import document
    from tenure.web.application import make_fastapi
    from tenure.web.site import Site

    made = document(make_fastapi(Site({"default": small.app}, hosts=["localhost"])))

    assert made["openapi"].startswith("3.1")
    named = {(verb.upper(), path) for path, verbs in made["paths"].items() for verb in verbs}
    assert named == {(route.verb, route.path) for route in table()}
    assert json.dumps(made)
