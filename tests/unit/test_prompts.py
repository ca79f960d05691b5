"""Requirements as prompts: what is put in, and what cannot be."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tenure.effects import Extraction
from tenure.effects.payloads import ClaudeExtraction
from tenure.errors import InvalidArgument


def test_a_payload_is_what_claude_extraction_takes_with_the_hash_of_its_prompt() -> None:
    extraction = Extraction("Read {text}", target="out/{id}.json", output_schema={"type": "object"})

    payload = extraction.payload({"id": 7, "text": "this"})

    assert payload == {
        "prompt": "Read this",
        "promptHash": hashlib.sha256(b"Read this").hexdigest(),
        "requirementId": "7",
        "targetPath": "out/7.json",
        "overwrite": True,
        "outputSchema": {"type": "object"},
    }
    assert ClaudeExtraction.model_validate(payload).requirementId == "7"


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("{text}", "a {id} b"),  # what is put in is not filled in again
        ("{{text}} of {id}", "{text} of R"),
        ("{tags}", '["x", "ä"]'),
        ("{owner.name}", "ada"),
        ("{owner}", '{"name": "ada"}'),
        ("{text!r:{id}}", None),
        ("{owner.__class__}", None),
        ("{none", None),
        ("{0}", None),
    ],
)
def test_fields_are_put_in_once_and_nothing_else_is_read(template: str, prompt: str | None) -> None:
    requirement = {"id": "R", "text": "a {id} b", "tags": ["x", "ä"], "owner": {"name": "ada"}}
    extraction = Extraction(template, target="x")

    if prompt is None:
        with pytest.raises(InvalidArgument, match="Nothing was enqueued"):
            extraction.prompt(requirement)
    else:
        assert extraction.prompt(requirement) == prompt


def test_a_missing_field_is_named_with_the_nearest_that_is_there() -> None:
    with pytest.raises(InvalidArgument, match=r"no 'txet'.*'text'"):
        Extraction("{txet}", target="x").prompt({"text": "a"})


@pytest.mark.parametrize("named", ["", None, True, ["R"], "x" * 201])
def test_an_id_that_names_nothing_is_refused(named: Any) -> None:
    with pytest.raises(InvalidArgument, match="'id' must be a text or a number"):
        Extraction("p", target="x").payload({"id": named})


@pytest.mark.parametrize("named", ["../x", "a/b", "..", "."])
def test_a_field_is_one_part_of_the_targets_path(named: str) -> None:
    with pytest.raises(InvalidArgument, match="no name for a part"):
        Extraction("p", target="out/{id}").payload({"id": named})
