"""A bundle holds what the database knows of a job, and is read without it."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.bundle import collect, document
from tenure.bundle.timeline import timeline
from tenure.errors import ConfigError, IllegalMove, InvalidArgument, NotFound
from tenure.testing import drain
from tests.bundle.conftest import SECRET


def test_a_bundle_holds_what_the_database_knows_and_reads_back_equal(app: tenure.App, order: str) -> None:
    made = collect.collect(app, order)

    read = document.decode(document.encode(made))

    assert read == made
    assert read.job == app.get(order)
    assert read.attempts == app.attempts(order)
    assert read.dead_letters == app.dead_letters.all(job_id=order).items[::-1]
    assert read.effects == app.effects.all(job_id=order).items
    assert read.steps == app.steps.all(order)
    assert read.events == app.events(job_id=order, limit=10_000)
    assert read.audit == app.access.audit(subject=order)[::-1]
    assert {one.id for one in read.children} == {one.id for one in app.jobs(parent_id=order)}
    assert read.streams[0].chunks == app.streams.read(order).chunks
    assert not read.left_out
    empty = [field.name for field in fields(read) if getattr(read, field.name) in ([], None)]
    assert empty == ["workflow", "escalations", "approvals", "budgets"]


def test_a_bundle_holds_approvals_and_budgets_without_their_secrets(app: tenure.App) -> None:
    @app.job(durable=True)
    def pay(payload: dict[str, Any], ctx: tenure.Context) -> str:
        ctx.approve("pay", args={"to": "ann", "password": "hunter2-and-more"}, text=f"Pay with {SECRET}?", expires=3600)
        with ctx.reserve(usd="0.10") as reservation:
            reservation.used(usd="0.08")
        return "paid"

    app.migrate()
    for scope in ("all", "kind:pay", "queue:default", "tenant:7", "tenant:8", "kind:other"):
        app.budgets.set(scope, usd="5.00", per="day")
    job_id = app.enqueue("pay", {"n": 1}, tenant="7").id
    drain(app)
    (asked,) = app.approvals.all(job_id=job_id)
    app.approvals.approve(asked.id, args_hash=asked.args_hash, by="bob", note="go on")
    drain(app)
    assert app.get(job_id).result == "paid"

    made = collect.collect(app, job_id)
    hidden = document.decode(document.encode(document.redacted(made)))

    assert document.decode(document.encode(made)) == made
    assert made.approvals == app.approvals.all(state=None, job_id=job_id).items
    assert [vote.voter for vote in made.approvals[0].votes] == ["bob"]
    assert [(one.scope, one.used) for one in made.budgets] == [
        (scope, 80_000) for scope in ("all", "kind:pay", "queue:default", "tenant:7")
    ]
    assert hidden.approvals[0].args == {"to": "ann", "password": "[redacted]"}
    assert SECRET not in hidden.approvals[0].text
    assert hidden.budgets == made.budgets
    assert {"approval pay asked", "approval pay: bob says approve"} <= {one.what for one in timeline(made)}


def test_a_file_from_before_approvals_is_still_read(content: bytes) -> None:
    def without(value: dict[str, Any]) -> None:
        del value["approvals"], value["budgets"]

    read = document.decode(changed(content, without))

    assert (read.approvals, read.budgets) == ([], [])


def test_a_task_brings_its_workflow_and_the_questions_about_it(app: tenure.App) -> None:
    app.queues.set("agents", max_attempts=1)
    flow = tenure.Workflow("ship", on_breach="escalate", escalate_to=[tenure.Escalation(person="ann")])
    flow.task("only", agent="agents", task_type="t")
    workflow_id = app.workflows.start(flow).id
    app.workflows.advance()
    (grant,) = app.claim(queues="agents")
    app.fail(grant, "broken")
    app.workflows.advance()

    made = document.decode(document.encode(collect.collect(app, grant.id)))

    assert made.workflow == app.workflows.get(workflow_id)
    assert made.escalations == app.workflows.escalations(workflow_id)
    assert made.escalations


def test_secrets_are_removed_and_the_rest_stays(app: tenure.App, order: str) -> None:
    made = collect.collect(app, order)

    hidden = document.redacted(made)
    text = gzip.decompress(document.encode(hidden)).decode()

    assert SECRET in gzip.decompress(document.encode(made)).decode()
    assert SECRET not in text
    assert "hunter2" not in text
    assert hidden.is_redacted
    assert hidden.job.payload == {"api_key": "[redacted]", "n": 7}
    assert (hidden.job.id, hidden.job.token, hidden.job.created_at) == (order, made.job.token, made.job.created_at)
    assert hidden.steps[0].value == made.steps[0].value
    assert [one.key for one in hidden.effects] == [one.key for one in made.effects]


def test_the_timeline_has_all_parts_in_the_order_of_time(app: tenure.App, order: str) -> None:
    moments = timeline(collect.collect(app, order))

    assert moments == sorted(moments, key=lambda one: one.at)
    told = [one.what for one in moments]
    assert told[0] == "created"
    for what in ("step price", "effect mail intended", "attempt 1 retried", "dead letter", "revive by ann", "dead"):
        assert what in told
    assert told.index("dead letter acknowledged") < told.index("revive by ann")


def test_a_part_that_is_too_large_loses_its_oldest_entries(
    app: tenure.App, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = app.events(job_id=order)
    monkeypatch.setattr(collect, "PART_BYTES", 1500)

    made = collect.collect(app, order)

    assert made.left_out["events"] == len(events) - len(made.events)
    assert 0 < len(made.events) < len(events)
    assert made.events[-1] == events[-1]


def test_every_page_of_a_part_is_read(app: tenure.App, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the audit only the newest thousand rows were taken, and the bundle did not say that others were left out."""
    for number in range(5):
        app.revive(order, reason=f"again {number}")
        app.cancel(order, reason="not now")
    whole = collect.collect(app, order)
    monkeypatch.setattr(collect, "PAGE", 2)

    made = collect.collect(app, order)

    assert len(made.audit) > 10
    assert len(made.children) == 2
    assert (made.audit, made.children, made.dead_letters) == (whole.audit, whole.children, whole.dead_letters)
    assert not made.left_out


def test_of_parts_that_are_too_large_the_newest_entries_stay(
    app: tenure.App, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        app.revive(order, reason=f"again {number}")
        app.cancel(order, reason="not now")
    whole = collect.collect(app, order).audit
    monkeypatch.setattr(collect, "PART_BYTES", 700)

    made = collect.collect(app, order)

    assert 0 < len(made.audit) < len(whole)
    assert made.audit == whole[-len(made.audit) :]
    assert made.left_out["audit"] == len(whole) - len(made.audit)


def test_a_job_that_moves_on_meanwhile_is_read_again(
    app: tenure.App, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The staged race: another process revives the job after its row was read, and before its attempts are."""
    read_attempts = app.attempts
    left = [1]

    def attempts(job_id: str) -> list[tenure.Attempt]:
        if left[0]:
            left[0] -= 1
            other = threading.Thread(target=lambda: app.revive(order, reason="meanwhile"))
            other.start()
            other.join()
        return read_attempts(job_id)

    monkeypatch.setattr(app, "attempts", attempts)

    made = collect.collect(app, order)

    assert not made.is_changing
    assert made.job.state == "queued"
    assert made.audit[-1].reason == "meanwhile"


def test_a_job_that_never_stands_still_is_bundled_with_a_word_about_it(
    app: tenure.App, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_attempts = app.attempts

    def attempts(job_id: str) -> list[tenure.Attempt]:
        app.revive(order, reason="again")
        app.cancel(order)
        return read_attempts(job_id)

    monkeypatch.setattr(app, "attempts", attempts)

    assert collect.collect(app, order).is_changing


def test_a_job_that_is_not_there_is_said_so(app: tenure.App) -> None:
    app.migrate()

    with pytest.raises(NotFound):
        collect.collect(app, "01890000-0000-7000-8000-000000000000")


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a small bundle."""
    with tenure.App(f"sqlite:///{tmp_path_factory.mktemp('bundle') / 'jobs.db'}") as app:
        job_id = app.enqueue("k", {"n": 1}).id
        app.fail(app.claim()[0], "broken")
        return document.encode(collect.collect(app, job_id))


def changed(content: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    value = json.loads(gzip.decompress(content))
    change(value)
    return gzip.compress(json.dumps(value).encode())


def test_a_file_is_its_owners_and_replaces_nothing_unasked(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "job.gz"
    document.write(path, content, replaces=False)

    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(IllegalMove, match="there already"):
        document.write(path, b"other", replaces=False)
    assert document.read(path).job.payload == {"n": 1}
    document.write(path, content, replaces=True)
    with pytest.raises(ConfigError, match="could not be written"):
        document.write(tmp_path / "no" / "job.gz", content, replaces=False)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        document.read(tmp_path / "none.gz")
    with pytest.raises(ConfigError, match="is not a file"):
        document.read(tmp_path)


def test_fields_that_a_later_version_adds_are_passed_over(content: bytes) -> None:
    read = document.decode(changed(content, lambda value: value["job"].update(new_column=7)))

    assert read == document.decode(content)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda value: value.update(version=2), "Open it with a newer Tenure"),
        (lambda value: value.update(version="1"), "which version"),
        (lambda value: value.update(version=True), "which version"),
        (lambda value: value.update(format="other"), "it is no bundle"),
        (lambda value: value.pop("job"), r"\$\.job: is missing"),
        (lambda value: value.update(job=[]), r"\$\.job: expected an object, got a list"),
        (lambda value: value["job"].update(state="eaten"), r"\$\.job\.state: expected one of .*'eaten'"),
        (lambda value: value["job"].update(attempt=True), r"\$\.job\.attempt: expected a whole number"),
        (lambda value: value["job"].update(created_at=7), r"\$\.job\.created_at: expected a moment"),
        (lambda value: value["job"].update(created_at="2026-01-01T00:00:00"), "with its time zone"),
        (lambda value: value["attempts"][0].update(error=[1]), r"\$\.attempts\[0\]\.error: expected text, got a list"),
        (lambda value: value.update(left_out={"events": "x"}), r"\$\.left_out\.events: expected a whole number"),
        (lambda value: value.update(streams={}), r"\$\.streams: expected a list"),
        (lambda value: value["job"].update(payload=float("nan")), "not JSON"),
    ],
)
def test_a_file_made_by_hand_is_refused_by_the_place_that_is_wrong(
    content: bytes, change: Callable[[dict[str, Any]], object], sentence: str
) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        document.decode(changed(content, change))


def nested(depth: int) -> bytes:
    return gzip.compress(b'{"format": "tenure-bundle", "job": ' + b"[" * depth + b"]" * depth + b"}")


@pytest.mark.parametrize(
    ("damaged", "sentence"),
    [
        (lambda _: b"", "not compressed by gzip"),
        (lambda _: b"PK\x03\x04", "not compressed by gzip"),
        (lambda content: content[: len(content) // 2], "cut short"),
        (lambda content: content[:-8] + b"\0" * 8, "is damaged"),
        (lambda content: content[:20] + b"\xff\xff\xff" + content[23:], "is damaged"),
        (lambda _: gzip.compress(b"{"), "not JSON"),
        (lambda _: gzip.compress(b"\xff\xfe"), "not JSON"),
        (lambda _: gzip.compress(b"[1]"), "it is no bundle"),
        (lambda _: gzip.compress(b'{"n": ' + b"9" * 5000 + b"}"), "not JSON"),
        (lambda _: nested(200), "nested deeper"),
        (lambda _: nested(100_000), "not JSON"),
        (lambda _: gzip.compress(b" " * (document.TEXT_BYTES + 1)), "unpacked it is larger"),
        (lambda _: b"\x1f\x8b" + b"\0" * document.FILE_BYTES, "larger than 32 MiB"),
    ],
)
def test_damaged_and_hostile_files_are_refused(
    content: bytes, damaged: Callable[[bytes], bytes], sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.gz"
    path.write_bytes(damaged(content))

    with pytest.raises(InvalidArgument, match=sentence) as caught:
        document.read(path)
    assert str(caught.value).startswith(f"{path} cannot be opened: ")


def test_every_single_damaged_byte_is_found_or_harmless(content: bytes) -> None:
    """The whole file is under gzip's checksum: what decodes after a change of one byte is the same bundle."""
    whole = document.decode(content)
    for place in range(len(content)):
        spoiled = bytearray(content)
        spoiled[place] ^= 0x41
        try:
            assert document.decode(bytes(spoiled)) == whole
        except InvalidArgument:
            continue


def test_a_bundle_too_large_to_be_opened_is_not_written(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    made = document.decode(content)
    monkeypatch.setattr(document, "TEXT_BYTES", 1 << 20)

    with pytest.raises(IllegalMove, match="a bundle holds 1 MiB at most"):
        document.encode(replace(made, job=replace(made.job, payload="x" * (1 << 20))))
