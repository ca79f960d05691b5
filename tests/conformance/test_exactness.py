"""What was enqueued comes back: byte for byte on the grant, value for value on the job."""

from __future__ import annotations

import json
import math

import pytest

from tenure.store.contract import Heartbeat
from tests.conformance.acts import Subject, claim_one, complete, enqueue, fail, get, hold

TEXTS = {
    "largest 64-bit integer": "[9223372036854775807, -9223372036854775808, 18446744073709551615]",
    "integers above 2**53": '{"id": 9007199254740993, "ids": [9007199254740995]}',
    "an integer of 40 digits": "1234567890123456789012345678901234567890",
    "floats as written": "[1e22, 1E400, 0.1, 1.0, 1.10, 5e-324, 1.7976931348623157e308]",
    "negative zero": "[-0.0, -0]",
    "key order": '{"z": 1, "a": 2, "m": {"y": 1, "b": 2}}',
    "white space": '{ "a" :\t1 ,\n"b": [ ] }',
    "unicode": json.dumps({"ключ": "значение", "漢字": "🐘", "é": "e\u0301"}, ensure_ascii=False),
    "escapes": '{"a": "\\u00e9 \\ud83d\\udc18 \\n \\" \\\\ \\/"}',
    "a key twice": '{"a": 1, "a": 2}',
    "a bare string": '"text"',
    "a bare null": "null",
    "a bare number": "42",
    "empty": "{}",
    "deep": "[" * 60 + "]" * 60,
    "quotes and percent": '{"a": "it\'s 100 % $1 :name ? {} %s"}',
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_payload_is_handed_to_the_worker_as_it_was_written(store: Subject, name: str) -> None:
    text = TEXTS[name]
    job_id = enqueue(store, payload=text)

    grant = claim_one(store)

    given = grant.payload_text if isinstance(grant.payload_text, str) else grant.payload_text.decode()
    assert given == text
    assert repr(grant.payload) == repr(json.loads(text))
    assert repr(get(store, job_id).payload) == repr(json.loads(text))


@pytest.mark.parametrize("name", TEXTS)
def test_results_and_progress_come_back_value_for_value(store: Subject, name: str) -> None:
    text = TEXTS[name]
    job_id = enqueue(store)
    grant = claim_one(store)

    store.do(Heartbeat([hold(grant, progress=text)]))
    complete(store, grant, result=text)

    job = get(store, job_id)
    assert repr(job.result) == repr(json.loads(text))
    assert repr(job.progress) == repr(json.loads(text))


def test_a_float_keeps_its_bits(store: Subject) -> None:
    numbers = [1e22, -0.0, 0.1 + 0.2, 5e-324, math.pi, 2**53 + 1.0, 1e16 + 2]
    job_id = enqueue(store, payload=numbers)

    back = get(store, job_id).payload

    assert [number.hex() for number in back] == [number.hex() for number in numbers]


def test_a_payload_of_a_megabyte_comes_back(store: Subject) -> None:
    payload = {"text": "ä🐘x" * 150_000, "n": list(range(1000))}
    job_id = enqueue(store, payload=json.dumps(payload, ensure_ascii=False))

    assert claim_one(store).payload == payload
    assert get(store, job_id).payload == payload


@pytest.mark.parametrize("text", ["plain", "naïve 漢字 🐘", "line\nline\ttab", 'it\'s "quoted" \\ %s :x', "ÄÖÜ" * 500])
def test_texts_come_back_as_they_were(store: Subject, text: str) -> None:
    job_id = enqueue(store, "work", source_ref=text, actor=text, tenant=text, affinity_key=text)

    fail(store, claim_one(store), text, retry_after_seconds=0)
    complete(store, claim_one(store), result_summary=text)

    job = get(store, job_id)
    assert (job.source_ref, job.actor, job.tenant, job.affinity_key, job.result_summary) == (text,) * 5


def test_a_kind_may_be_any_text(store: Subject) -> None:
    for kind in ("service:nextjs", "задача", "a b", "x" * 200):
        job_id = enqueue(store, kind)
        assert claim_one(store).kind == kind
        assert get(store, job_id).kind == kind


def test_progress_of_a_grant_comes_back_value_for_value(store: Subject) -> None:
    enqueue(store)
    grant = claim_one(store)
    store.do(Heartbeat([hold(grant, progress='{"at": 9007199254740993}')]))
    fail(store, grant, retry_after_seconds=0)

    assert claim_one(store).extra("progress") == {"at": 9007199254740993}
