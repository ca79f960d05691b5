"""Payloads: what goes in comes out, and what could not is refused with the path of the field."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, IntEnum
from typing import Any, NotRequired, TypedDict
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import HandlerError, InvalidPayload
from tenure.handler.payload import INTEGER_MAX, INTEGER_MIN, Later, encode, payload_codec, show_path
from tenure.model.policy import Limits

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(INTEGER_MIN, INTEGER_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=30,
)


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@dataclass
class Address:
    city: str
    lines: list[str] = field(default_factory=list)


class Mail(pydantic.BaseModel):
    to: list[str]
    copies: int = 1
    at: datetime | None = None
    ratio: float = 0.5


class Tag(TypedDict):
    name: str


class Note(TypedDict):
    text: str
    tags: NotRequired[list[Tag]]
    other: NotRequired[Tag | None]


@given(JSON)
def test_plain_json_survives_the_round_trip(value: Any) -> None:
    text = encode(value)

    assert json.loads(text) == value
    text.encode("utf-8")
    assert "\n" not in text


@given(JSON)
def test_an_untyped_kind_gives_back_what_was_enqueued(value: Any) -> None:
    to_text, from_text = payload_codec(Any, "kind")

    assert from_text(to_text(value)) == value
    assert from_text(to_text(value).encode()) == value


@given(
    st.recursive(
        JSON
        | st.floats()
        | st.integers()
        | st.text()
        | st.binary()
        | st.sets(st.integers(), max_size=2)
        | st.datetimes(),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.text() | st.integers() | st.none(), inner, max_size=4)
            | st.tuples(inner, inner)
        ),
        max_leaves=20,
    )
)
def test_whatever_is_handed_in_is_either_valid_json_or_refused(value: Any) -> None:
    try:
        text = encode(value)
    except InvalidPayload as exc:
        assert "$" in str(exc)  # noqa: PT017 - both ways are right, each with its own promise
        return

    again = json.loads(text, parse_constant=pytest.fail)
    assert encode(again) == text
    assert "\\u0000" not in text.replace("\\\\", "")
    text.encode("utf-8")


@given(st.text() | st.binary())
def test_decoding_noise_never_raises_anything_but_invalid_payload(noise: str | bytes) -> None:
    for annotation in (Any, dict, Mail, Address, Note, int):
        _, from_text = payload_codec(annotation, "kind")
        try:
            from_text(noise)
        except InvalidPayload:
            continue


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": math.nan}, "$.a: nan"),
        ({"a": [1, -math.inf]}, "$.a[1]: -inf"),
        ({"a": ["x\0y"]}, "$.a[0]: the text contains NUL"),
        ({"a\0b": 1}, "the text contains NUL"),
        ({"a": "\ud800"}, "$.a: the text contains a lone surrogate"),
        ({"\udfff": 1}, "lone surrogate"),
        ({"a": {1: 2}}, "$.a: keys must be str, got int"),
        ({None: 1}, "$: keys must be str, got null"),
        ({"n": INTEGER_MAX + 1}, "$.n: the integer does not fit into 64 bits"),
        ({"n": INTEGER_MIN - 1}, "$.n: the integer does not fit into 64 bits"),
        ({"a b": {1, 2}}, '$["a b"]: expected a JSON value, got set'),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, "$.at: expected a JSON value, got datetime"),
        ([b"bytes"], "$[0]: expected a JSON value, got bytes"),
        ({"to": [Address]}, "$.to[0]: expected a JSON value, got type"),
    ],
)
def test_what_no_engine_could_hold_is_refused_with_its_path(value: Any, where: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        encode(value)

    assert where in str(caught.value)


@pytest.mark.parametrize("number", [INTEGER_MIN, -1, 0, 2**53 + 1, INTEGER_MAX])
def test_64_bit_integers_are_exact(number: int) -> None:
    assert json.loads(encode({"n": number}))["n"] == number


def test_a_text_that_only_looks_like_an_escaped_nul_is_fine() -> None:
    assert json.loads(encode({"a": "\\u0000"})) == {"a": "\\u0000"}


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ({"c": Colour.RED, "l": Level.HIGH}, {"c": "red", "l": 3}),
        ({"address": Address("Rome", ["a"])}, {"address": {"city": "Rome", "lines": ["a"]}}),
        (OrderedDict(a=(1, 2)), {"a": [1, 2]}),
        (
            Mail(to=["x"], at=datetime(2026, 1, 1, tzinfo=UTC)),
            {"to": ["x"], "copies": 1, "at": "2026-01-01T00:00:00Z", "ratio": 0.5},
        ),
    ],
)
def test_enums_dataclasses_and_models_become_plain_json(value: Any, plain: Any) -> None:
    assert json.loads(encode(value)) == plain


def test_json_is_compact_and_keeps_unicode() -> None:
    assert encode({"a": [1, "é→😀"]}) == '{"a":[1,"é→😀"]}'


def test_depth_is_limited_without_overflowing() -> None:
    deep: Any = []
    for _ in range(200_000):
        deep = [deep]

    with pytest.raises(InvalidPayload, match="nested deeper than 64 levels"):
        encode(deep)


@pytest.mark.parametrize(("levels", "fits"), [(4, True), (5, False)])
def test_the_depth_limit_is_exact(levels: int, fits: bool) -> None:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}

    if fits:
        assert encode(value, Limits(payload_depth=4)) == '{"a":{"a":{"a":{"a":1}}}}'
    else:
        with pytest.raises(InvalidPayload, match="deeper than 4"):
            encode(value, Limits(payload_depth=4))


def test_a_payload_without_levels_is_one_level_deep() -> None:
    assert encode({"a": 1}, Limits(payload_depth=1)) == '{"a":1}'
    with pytest.raises(InvalidPayload, match="nested deeper than 0 levels"):
        encode({"a": 1}, Limits(payload_depth=0))


@pytest.mark.parametrize("value", [INTEGER_MIN, INTEGER_MAX, True, None, 0.5, "é", IntEnum("Few", "ONE TWO").TWO])  # type: ignore[attr-defined]
def test_a_value_is_written_alike_with_and_without_levels(value: Any) -> None:
    flat = encode({"a": value})

    assert encode({"a": value, "b": []}) == flat[:-1] + ',"b":[]}'


def test_a_depth_limit_beyond_pythons_own_still_raises_our_error() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(InvalidPayload, match="nested deeper than Python can follow"):
        encode(deep, Limits(payload_depth=1_000_000))


def test_a_value_that_holds_itself_ends_in_a_refusal() -> None:
    knot: list[Any] = []
    knot.extend([knot, knot])

    with pytest.raises(InvalidPayload):
        encode(knot)


def test_a_small_web_of_references_that_unfolds_hugely_ends_in_a_refusal() -> None:
    web: list[Any] = []
    for _ in range(60):
        web = [web, web]

    with pytest.raises(InvalidPayload, match="more than 1,000 values"):
        encode(web, Limits(payload_bytes=1000))


@pytest.mark.parametrize(("length", "fits"), [(98, True), (99, False)])
def test_the_size_limit_counts_bytes(length: int, fits: bool) -> None:
    if fits:
        assert len(encode("x" * length, Limits(payload_bytes=100))) == 100
    else:
        with pytest.raises(InvalidPayload, match=r"takes 101 bytes, and the limit is 100"):
            encode("x" * length, Limits(payload_bytes=100))
    with pytest.raises(InvalidPayload, match="takes 102 bytes"):
        encode("é" * 50, Limits(payload_bytes=100))


@pytest.mark.parametrize(
    ("annotation", "value", "error"),
    [
        (Mail, {"to": [1]}, "Kind 'k': the payload does not fit. $.to[0]: expected str, got int."),
        (Mail, {}, "$.to: the field is missing"),
        (Mail, {"to": [], "copies": "many"}, "$.copies: expected int, got str"),
        (Mail, [], "$: expected dict, got list"),
        (Mail, {"to": [], "ratio": math.inf}, "$.ratio: inf is not JSON"),
        (Address, {"city": 7}, "$.city: expected str, got int"),
        (Address, {"city": "x", "lines": "y"}, "$.lines: expected list, got str"),
        (Note, {"text": "x", "tags": [{"name": None}]}, "$.tags[0].name: expected str, got null"),
        (dict, [1], "$: expected dict, got list"),
        (dict[str, Any], "x", "$: expected dict, got str"),
        (int, 2**64, "does not fit into 64 bits"),
        (str, "a\0", "$: the text contains NUL"),
    ],
)
def test_a_typed_payload_that_does_not_fit_names_the_field(annotation: Any, value: Any, error: str) -> None:
    to_text, _ = payload_codec(annotation, "k")

    with pytest.raises(InvalidPayload) as caught:
        to_text(value)

    assert error in str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "text", "error"),
    [
        (Mail, '{"to": [1]}', "$.to[0]: expected str, got int"),
        (Mail, "{", "$: invalid JSON"),
        (Address, '{"city": null}', "$.city: expected str, got null"),
        (Note, '{"tags": []}', "$.text: the field is missing"),
        (dict, "[]", "$: expected dict, got list"),
        (Any, "{", "is not JSON that can be read"),
        (Any, "[" * 100_000, "is not JSON that can be read"),
        (Mail, "[" * 100_000, "recursion limit exceeded"),
        (Any, b"\xff", "is not JSON that can be read"),
    ],
)
def test_a_stored_payload_that_does_not_fit_names_the_field(annotation: Any, text: str | bytes, error: str) -> None:
    _, from_text = payload_codec(annotation, "k")

    with pytest.raises(InvalidPayload) as caught:
        from_text(text)

    assert error in str(caught.value)


@pytest.mark.parametrize("annotation", [Any, dict, Later(lambda: dict[str, Any])])
@pytest.mark.parametrize(
    "text",
    ['{"a":1}', ' {"a":1}', '{"a":1}\n', '\t{"a": 1} ', b'{"a":1}', b' {"a":1}\n', '{"a":1}'.encode("utf-16")],
)
def test_a_payload_is_read_with_or_without_space_around_it_and_as_bytes(annotation: Any, text: str | bytes) -> None:
    """Another client, or a person in psql, may have written it."""
    _, from_text = payload_codec(annotation, "k")

    assert from_text(text) == {"a": 1}


@pytest.mark.parametrize("text", ["", " ", '{"a":1}x', '{"a":1} {}', '\ufeff{"a":1}', "{'a':1}"])
def test_a_payload_that_is_not_json_is_refused_in_the_words_of_the_json_module(text: str) -> None:
    _, from_text = payload_codec(Any, "k")
    with pytest.raises(ValueError) as expected:
        json.loads(text)

    with pytest.raises(InvalidPayload) as caught:
        from_text(text)

    assert str(expected.value) in str(caught.value)


def test_errors_never_show_values() -> None:
    to_text, from_text = payload_codec(Mail, "k")
    broken = Mail(to=["a"])
    broken.copies = "hunter2"  # type: ignore[assignment]

    for act in (
        lambda: to_text({"to": ["x"], "copies": "hunter2"}),
        lambda: from_text('{"to":["x"],"copies":"hunter2"}'),
        lambda: to_text(broken),
    ):
        with pytest.raises(InvalidPayload) as caught:
            act()
        assert "hunter2" not in str(caught.value)
        assert "$.copies: expected int, got str" in str(caught.value)


@given(
    st.builds(
        Mail,
        to=st.lists(TEXT),
        copies=st.integers(INTEGER_MIN, INTEGER_MAX),
        ratio=st.floats(0, 1),
        at=st.none() | st.datetimes(timezones=st.just(UTC)),
    )
)
def test_models_survive_the_round_trip(mail: Mail) -> None:
    to_text, from_text = payload_codec(Mail, "mail")

    assert from_text(to_text(mail)) == mail
    assert from_text(to_text(mail.model_dump())) == mail


@given(st.builds(Address, city=TEXT, lines=st.lists(TEXT)))
def test_dataclasses_survive_the_round_trip(address: Address) -> None:
    to_text, from_text = payload_codec(Address, "address")

    assert from_text(to_text(address)) == address


def test_typed_dicts_survive_the_round_trip() -> None:
    to_text, from_text = payload_codec(Note, "note")
    note: Note = {"text": "x", "tags": [{"name": "t"}], "other": None}

    assert from_text(to_text(note)) == note
    assert from_text(to_text({"text": "y"})) == {"text": "y"}


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(list[UUID], [UUID(int=7)]), (int | None, None), (tuple[int, str], (1, "a")), (list[Tag], [{"name": "x"}])],
)
def test_other_annotations_survive_the_round_trip(annotation: Any, value: Any) -> None:
    to_text, from_text = payload_codec(annotation, "k")

    assert from_text(to_text(value)) == value


def test_aliases_are_used_both_ways() -> None:
    class Aliased(pydantic.BaseModel):
        user: int = pydantic.Field(alias="userId")

    to_text, from_text = payload_codec(Aliased, "k")

    assert to_text({"userId": 7}) == '{"userId":7}'
    assert from_text('{"userId":7}').user == 7


def test_a_type_that_is_found_later_is_looked_for_at_the_first_use() -> None:
    looked: list[int] = []

    def find() -> Any:
        looked.append(1)
        return Mail

    to_text, from_text = payload_codec(Later(find), "k")
    assert not looked

    to_text({"to": []})
    from_text('{"to":[]}')

    assert looked == [1]


def test_a_type_that_json_cannot_carry_is_the_authors_mistake() -> None:
    to_text, _ = payload_codec(subprocess.Popen, "k")

    with pytest.raises(HandlerError, match="Kind 'k': its payload type Popen cannot be read as JSON"):
        to_text({})


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ((), "$"),
        (("to", 0), "$.to[0]"),
        (("a b", "ü"), '$["a b"]["\\u00fc"]'),
        (tuple(range(20)), "$[0][1][2][3][4][5][6][7]…[16][17][18][19]"),
    ],
)
def test_paths_are_shown_as_json_paths(path: tuple[str | int, ...], shown: str) -> None:
    assert show_path(path) == shown


def test_plain_payloads_never_import_pydantic() -> None:
    code = (
        "import sys; from typing import Any; from tenure.handler.payload import encode, payload_codec;"
        "e, d = payload_codec(dict, 'k'); d(e({'a': 1})); encode([1]); payload_codec(Any, 'k')[0](1);"
        "sys.exit('pydantic' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(JSON)
def test_a_payload_is_read_as_json_reads_it(value: Any) -> None:
    _, decode = payload_codec(Any, "k")
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert decode(text) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        r'"\ud800"', "[" * 300 + "]" * 300, '{"a": 1, "a": 2}', "123456789012345678901234567890", "-0", "-0.0",
        "1e400", "5e-324", " [1] ",
    ],
    ids=["surrogate", "nest", "twice", "large", "zero", "minus-zero", "infinite", "least", "space"],
)  # fmt: skip
def test_what_other_writers_put_into_a_payload_is_read_as_json_reads_it(text: str) -> None:
    """Not every payload comes from this client: a job may be written in any language."""
    _, decode = payload_codec(Any, "k")

    assert repr(decode(text)) == repr(json.loads(text))
