"""Frozen values behave as the standard library's frozen dataclasses do; they are only quicker to make."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest

from tenure.model.frozen import frozen

SOURCES = Path(__file__).parents[2] / "src"


@frozen
class Ours:
    """A value with everything that a field can have."""

    name: str
    size: float = 1.5
    tags: dict[str, int] = field(default_factory=dict)
    secret: str = field(default="hush", repr=False)
    note: str = field(default="", compare=False)
    length: int = field(init=False)
    seen: list[str] = field(default_factory=list, init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", len(self.name))


@dataclass(frozen=True, slots=True)
class Theirs:
    """The same, by the standard library."""

    name: str
    size: float = 1.5
    tags: dict[str, int] = field(default_factory=dict)
    secret: str = field(default="hush", repr=False)
    note: str = field(default="", compare=False)
    length: int = field(init=False)
    seen: list[str] = field(default_factory=list, init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", len(self.name))


@frozen
class Empty:
    """Nothing to hold."""


@frozen
class Spoken:
    """One that says for itself how it is shown."""

    word: str

    def __repr__(self) -> str:
        return f"«{self.word}»"


BOTH = pytest.mark.parametrize("make", [Ours, Theirs])


@BOTH
def test_fields_are_shown_but_for_the_hidden(make: Callable[..., Any]) -> None:
    shown = repr(make("ab", tags={"x": 1}))

    assert shown == f"{make.__qualname__}(name='ab', size=1.5, tags={{'x': 1}}, note='', length=2, seen=[])"


@BOTH
def test_equal_is_what_has_equal_fields(make: Callable[..., Any]) -> None:
    assert make("ab") == make("ab", note="beside the point")
    assert make("ab") != make("ab", 2.0)
    assert make("ab") != ("ab", 1.5)


def test_classes_with_the_same_fields_are_not_equal() -> None:
    ours: object = Ours("ab")

    assert ours != Theirs("ab")


@BOTH
def test_hashes_agree_with_equality(make: Callable[..., Any]) -> None:
    one, other = make("ab", tags=None), make("ab", tags=None, note="beside the point")

    assert hash(one) == hash(other)
    assert {one, other, make("cd", tags=None)} == {one, make("cd", tags=None)}


@BOTH
def test_nothing_can_be_set_or_deleted(make: Callable[..., Any]) -> None:
    value = make("ab")

    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'name'"):
        value.name = "cd"
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'name'"):
        del value.name
    assert not hasattr(value, "__dict__")


@BOTH
def test_each_value_gets_its_own_defaults(make: Callable[..., Any]) -> None:
    one, other = make("ab"), make("ab")

    assert one.tags is not other.tags
    assert one.seen is not other.seen


@BOTH
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, replace, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_are_equal(make: Callable[..., Any], again: Callable[[Any], Any]) -> None:
    value = make("ab", 2.0, {"x": 1}, "psst", "beside the point")

    found = again(value)

    assert found == value
    assert astuple(found) == astuple(value)


def test_the_standard_library_reads_them_alike() -> None:
    assert asdict(Ours("ab")) == asdict(Theirs("ab"))
    assert [each.name for each in fields(Ours)] == [each.name for each in fields(Theirs)]
    assert Ours.__match_args__ == Theirs.__match_args__
    assert list(inspect.signature(Ours).parameters) == list(inspect.signature(Theirs).parameters)
    assert replace(Ours("ab"), name="abc").length == 3


@BOTH
def test_wrong_arguments_are_named(make: Any) -> None:
    with pytest.raises(TypeError, match=rf"{make.__name__}\.__init__\(\) missing 1 required .*'name'"):
        make()
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'colour'"):
        make("ab", colour="red")


def test_what_a_class_says_itself_is_kept() -> None:
    assert repr(Spoken("hello")) == "«hello»"
    assert Spoken("hello") == Spoken("hello")


def test_a_class_without_fields_works() -> None:
    assert Empty() == Empty()
    assert repr(Empty()) == "Empty()"


def test_the_house_makes_its_values_in_one_way() -> None:
    others = [path.name for path in SOURCES.rglob("*.py") if "@dataclass(frozen=True" in path.read_text("utf-8")]

    assert others == ["frozen.py"]  # its docstring says what it is beside
