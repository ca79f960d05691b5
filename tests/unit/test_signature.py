"""How a handler's function is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pydantic
import pytest

import tenure
from tenure.client.signature import read_signature
from tenure.errors import HandlerError, InvalidPayload
from tenure.handler.payload import Later


def nothing() -> None: ...
def payload_only(payload: dict[str, Any]) -> None: ...
def untyped(payload) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
def context_only(ctx: tenure.Context) -> None: ...
def context_by_name(context) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
def both(payload: int, anything: tenure.Context) -> None: ...
async def both_async(payload: int, ctx: tenure.Context) -> None: ...
def with_extras(payload: int, ctx: tenure.Context, verbose: bool = False, *, retries: int = 3) -> None: ...
def optional_payload(payload: int = 7) -> None: ...


@pytest.mark.parametrize(
    ("function", "wants"),
    [
        (nothing, (False, False)),
        (payload_only, (True, False)),
        (untyped, (True, False)),
        (context_only, (False, True)),
        (context_by_name, (False, True)),
        (both, (True, True)),
        (both_async, (True, True)),
        (with_extras, (True, True)),
        (optional_payload, (True, False)),
    ],
)
def test_payload_and_context_are_told_apart(function: Callable[..., Any], wants: tuple[bool, bool]) -> None:
    signature = read_signature(function, "kind", {})

    assert (signature.wants_payload, signature.wants_context) == wants


def two_contexts(payload: int, ctx: tenure.Context, other: tenure.Context) -> None: ...
def by_place_only(a: int, b: int, /) -> None: ...
def generator(payload: int) -> Iterator[int]:
    yield payload


@pytest.mark.parametrize("function", [two_contexts, by_place_only, generator])
def test_a_function_that_a_worker_could_not_call_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(HandlerError, match="Kind 'kind'"):
        read_signature(function, "kind", {})


def test_the_payloads_type_is_resolved_from_the_module() -> None:
    assert read_signature(payload_only, "kind", {}).payload == dict[str, Any]
    assert read_signature(untyped, "kind", {}).payload is Any


def test_a_type_defined_in_a_function_is_found() -> None:
    app = tenure.App("sqlite:///never-opened.db")

    class Local(pydantic.BaseModel):
        number: int

    @app.job
    def bare(payload: Local) -> None: ...

    @app.job(kind="called")
    def with_arguments(payload: Local) -> None: ...

    for kind in ("bare", "called"):
        assert app.new_job(kind, {"number": 1}).payload == '{"number":1}'
        with pytest.raises(InvalidPayload, match=r"\$\.number: expected int"):
            app.new_job(kind, {"number": "x"})


def test_a_type_defined_further_down_is_found_when_the_first_job_comes() -> None:
    module: dict[str, Any] = {}
    exec("from __future__ import annotations\ndef handler(payload: Below): ...", module)

    signature = read_signature(module["handler"], "kind", {})
    exec("class Below: ...", module)

    assert isinstance(signature.payload, Later)
    assert signature.payload.find() is module["Below"]


def test_a_type_that_is_nowhere_is_the_authors_mistake() -> None:
    def handler(payload: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    signature = read_signature(handler, "kind", {})

    assert isinstance(signature.payload, Later)
    with pytest.raises(HandlerError, match="'Nowhere' is not defined"):
        signature.payload.find()
