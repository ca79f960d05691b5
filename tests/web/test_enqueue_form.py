"""The form that enqueues: fields from the kind's own type, checked by it, and JSON where fields do not do."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, Field

import tenure
from tests.web.conftest import Server
from tests.web.test_pages import _text, signed_in

pytestmark = pytest.mark.anyio


class Size(enum.StrEnum):
    SMALL = "small"
    LARGE = "large"


class Picture(BaseModel):
    """What to draw."""

    path: str = Field(description="Below the root")
    width: int = Field(ge=1, le=10_000)
    ratio: float | None = None
    size: Size = Size.SMALL
    mode: Literal["fit", "fill"] = "fit"
    is_grey: bool = False
    tags: list[str] = []


@pytest.fixture
def shop(tmp_path: Path) -> Server:
    app = tenure.App(f"sqlite:///{tmp_path / 'shop.db'}")

    @app.job(kind="draw")
    def draw(payload: Picture) -> None:
        """Draw."""

    @app.job(kind="anything")
    def anything(payload: object) -> None:
        """Take anything."""

    return Server(app)


FILLED = {
    "kind": "draw",
    "p.path": "a.jpg",
    "p.width": "640",
    "p.ratio": "",
    "p.size": "large",
    "p.mode": "fill",
    "p.is_grey": "on",
    "p.tags": '["x", "y"]',
}


async def test_each_property_has_a_field_and_the_payload_is_what_they_say(shop: Server) -> None:
    async with signed_in(shop) as client:
        form = await client.get("/ui/enqueue", params={"kind": "draw"})
        sent = await client.post("/ui/enqueue", data=FILLED)

    (job,) = shop.app.jobs(kind="draw").items
    shop.app.close()
    assert all(f'name="p.{name}"' in form.text for name in Picture.model_fields)
    assert "Below the root" in form.text
    assert '<option value="small" selected>' in form.text
    assert 'name="payload"' not in form.text
    assert sent.status_code == 303
    assert {name: job.payload[name] for name in ("path", "width", "size", "mode", "is_grey", "tags")} == {
        "path": "a.jpg",
        "width": 640,
        "size": "large",
        "mode": "fill",
        "is_grey": True,
        "tags": ["x", "y"],
    }


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("p.width", "wide", "whole number"),
        ("p.width", "0", "width"),
        ("p.ratio", "NaN", "number"),
        ("p.tags", "[", "JSON"),
        ("p.size", "huge", "size"),
    ],
)
async def test_a_wrong_field_is_named_and_what_was_filled_in_stays(
    shop: Server, field: str, value: str, says: str
) -> None:
    async with signed_in(shop) as client:
        answer = await client.post("/ui/enqueue", data={**FILLED, field: value})

    assert shop.app.jobs().items == []
    shop.app.close()
    assert answer.status_code == 422
    assert says in _text(answer)
    assert 'value="a.jpg"' in answer.text


async def test_a_kind_without_a_type_keeps_the_json_field(shop: Server) -> None:
    async with signed_in(shop) as client:
        untyped = await client.get("/ui/enqueue", params={"kind": "anything"})
        unknown = await client.get("/ui/enqueue", params={"kind": "elsewhere"})
        chosen = await client.get("/ui/enqueue", params={"kind": "draw", "json": "1"})
        sent = await client.post("/ui/enqueue", data={"kind": "draw", "payload": '{"path": "b", "width": 3}'})

    shop.app.close()
    assert all('name="payload"' in one.text for one in (untyped, unknown, chosen))
    assert sent.status_code == 303
