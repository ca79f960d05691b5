"""Tracing and logging: what a job's enqueue, handler and settle tell, across processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk
import structlog
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import tenure
from tenure.integrations import opentelemetry, sentry
from tenure.integrations import structlog as tenure_structlog
from tenure.model.fingerprint import fingerprint
from tenure.testing import adrain, drain

# --- OpenTelemetry ---------------------------------------------------------------------------------------------------

PROGRAM = """
import json, sys
import tenure
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tenure.integrations.opentelemetry import instrument
from tenure.testing import drain

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
app = tenure.App()
instrument(app, tracer_provider=provider)

@app.job(queue="mail")
def welcome(user_id: int, ctx: tenure.Context) -> None:
    ctx.enqueue("thank", user_id)

@app.job(queue="mail")
async def thank(user_id: int) -> None: ...

if sys.argv[1] == "enqueue":
    welcome.enqueue(7)
else:
    drain(app)
app.close()
for span in exporter.get_finished_spans():
    print(span.to_json(indent=None))
"""


def run_program(folder: Path, url: str, step: str) -> list[dict[str, Any]]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), step],
        env={"TENURE_URL": url, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_handler_links_to_the_enqueue_in_another_process(url: str, tmp_path: Path) -> None:
    (enqueued,) = run_program(tmp_path, url, "enqueue")
    spans = run_program(tmp_path, url, "work")

    processed = [span for span in spans if span["name"] == "process mail"]
    welcome, thank = sorted(processed, key=lambda span: span["start_time"])
    settled = [span for span in spans if span["name"] == "settle mail"]
    assert (enqueued["name"], enqueued["kind"]) == ("enqueue mail", "SpanKind.PRODUCER")
    assert welcome["attributes"]["messaging.message.id"] == enqueued["attributes"]["messaging.message.id"]
    assert contexts(welcome["links"]) == contexts([enqueued])
    assert contexts(thank["links"]) == contexts([welcome])
    assert all(span["parent_id"] is None for span in processed)
    assert len({span["context"]["trace_id"] for span in [enqueued, *processed]}) == 3
    assert [contexts(span["links"]) for span in settled] == [contexts([welcome]), contexts([thank])]
    assert {span["kind"] for span in settled} == {"SpanKind.CLIENT"}


def contexts(spans: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["context"]["trace_id"], one["context"]["span_id"]) for one in spans]


class Telemetry:
    """Spans and metrics of an app, kept in memory."""

    def __init__(self, app: tenure.App) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")
        opentelemetry.instrument(
            app, tracer_provider=provider, meter_provider=MeterProvider(metric_readers=[self._reader])
        )
        opentelemetry.instrument(app)  # changes nothing

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def metrics(self) -> dict[str, Any]:
        """What is told of each metric."""
        data = json.loads(self._reader.get_metrics_data().to_json())  # type: ignore[union-attr]
        (found,) = data["resource_metrics"][0]["scope_metrics"]
        return {metric["name"]: metric["data"] for metric in found["metrics"]}


@pytest.fixture
def app(url: str) -> Iterator[tenure.App]:
    with tenure.App(url) as app:
        yield app


def test_a_failed_handler_is_an_error_and_a_snoozed_one_is_not(app: tenure.App) -> None:
    telemetry = Telemetry(app)

    @app.job
    def fails() -> None:
        raise ValueError("no")

    @app.job
    def waits() -> None:
        raise tenure.Snooze(60)

    fails.enqueue()
    waits.enqueue()
    drain(app, raise_errors=False)

    by_kind = {
        span.attributes["tenure.job.kind"]: span for span in telemetry.spans("process default") if span.attributes
    }
    failed, snoozed = by_kind["fails"], by_kind["waits"]
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "ValueError"
    assert [event.name for event in failed.events] == ["exception"]
    assert snoozed.status.status_code is StatusCode.UNSET
    assert telemetry.metrics().keys() == {
        "messaging.client.operation.duration",
        "messaging.client.sent.messages",
        "messaging.client.consumed.messages",
        "messaging.process.duration",
    }


def test_durations_have_buckets_for_seconds(app: tenure.App) -> None:
    """The SDK's own begin at 0, 5, 10: every enqueue and most handlers were in the second one."""
    telemetry = Telemetry(app)

    @app.job
    def noted() -> None: ...

    noted.enqueue()
    drain(app)

    found = telemetry.metrics()
    for name, longest in (("messaging.client.operation.duration", 10), ("messaging.process.duration", 3600)):
        for point in found[name]["data_points"]:
            assert (point["explicit_bounds"][0], point["explicit_bounds"][-1]) == (0.005, longest)


@pytest.mark.anyio
async def test_async_enqueues_are_children_of_the_span_at_hand_and_share_one_for_a_batch(app: tenure.App) -> None:
    telemetry = Telemetry(app)

    @app.job(queue="mail")
    async def send(number: int) -> None: ...

    with telemetry.tracer.start_as_current_span("request") as request:
        handles = await send.aenqueue_many([1, 2, 3])
    await adrain(app)

    (batch,) = telemetry.spans("enqueue mail")
    assert batch.kind is SpanKind.PRODUCER
    assert batch.parent is not None
    assert batch.parent.span_id == request.get_span_context().span_id
    assert batch.attributes is not None
    assert batch.attributes["messaging.batch.message_count"] == 3
    jobs = await app.aio.get_many([handle.id for handle in handles])
    context = batch.get_span_context()
    assert context is not None
    carried = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    assert {job.trace for job in jobs if job is not None} == {carried}
    assert len(telemetry.spans("process mail")) == 3


def test_a_trace_that_an_enqueue_gives_itself_is_kept(app: tenure.App) -> None:
    Telemetry(app)
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    assert app.get(app.enqueue("any", trace=given).id).trace == given


def test_a_refused_enqueue_is_an_error(app: tenure.App) -> None:
    telemetry = Telemetry(app)
    app.enqueue("one", {"n": 1}, key="k")

    with pytest.raises(tenure.KeyConflict):
        app.enqueue("one", {"n": 2}, key="k")

    assert [span.status.status_code for span in telemetry.spans("enqueue default")] == [
        StatusCode.UNSET,
        StatusCode.ERROR,
    ]


def test_without_an_sdk_nothing_is_carried_and_jobs_run(app: tenure.App) -> None:
    opentelemetry.instrument(app)

    @app.job
    def noted() -> str:
        return "ran"

    handle = noted.enqueue()
    drain(app)

    assert (app.get(handle.id).trace, app.get(handle.id).result) == (None, "ran")


# --- Sentry ----------------------------------------------------------------------------------------------------------


class Sent(sentry_sdk.transport.Transport):
    """What would go to Sentry."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Any) -> None:
        self.items += [item.payload.json for item in envelope.items if item.payload.json is not None]

    def of(self, wanted: Callable[[dict[str, Any]], Any]) -> list[dict[str, Any]]:
        sentry_sdk.flush()
        return [item for item in self.items if wanted(item)]


@pytest.fixture
def sent() -> Iterator[Sent]:
    sent = Sent()
    sentry_sdk.init(
        dsn="https://key@sentry.invalid/1", transport=sent, traces_sample_rate=1.0, default_integrations=False
    )
    yield sent
    sentry_sdk.init(default_integrations=False)  # the default ones patch threads for good


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_sentry_gets_the_error_with_our_fingerprint_and_no_payload(app: tenure.App, sent: Sent) -> None:
    sentry.instrument(app)
    sentry.instrument(app)  # changes nothing

    @app.job(queue="mail")
    def fails(word: str) -> None:
        raise ValueError("no such user 42")

    with sentry_sdk.start_transaction(name="request", op="http"):
        handle = fails.enqueue("a secret word")
    drain(app, raise_errors=False)

    (error,) = sent.of(lambda item: "exception" in item)
    (request,) = sent.of(lambda item: item.get("transaction") == "request")
    (process,) = sent.of(lambda item: item.get("transaction") == "fails" and "exception" not in item)
    assert error["fingerprint"] == ["tenure", fingerprint("error", "ValueError: no such user 42")]
    assert error["contexts"]["job"]["id"] == handle.id
    assert [span["op"] for span in request["spans"]] == ["queue.publish"]
    trace = process["contexts"]["trace"]
    assert (trace["op"], trace["trace_id"]) == ("queue.process", request["contexts"]["trace"]["trace_id"])
    assert trace["parent_span_id"] == request["spans"][0]["span_id"]
    assert trace["data"]["messaging.destination.name"] == "mail"
    assert trace["data"]["messaging.message.receive.latency"] >= 0
    assert "a secret word" not in json.dumps([request, process, error["contexts"], error.get("extra")])


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_sentry_hears_nothing_of_a_job_that_snoozes(app: tenure.App, sent: Sent) -> None:
    sentry.instrument(app)

    @app.job
    async def waits() -> None:
        raise tenure.Snooze(60)

    waits.enqueue()
    drain(app)

    assert sent.of(lambda item: "exception" in item) == []
    assert len(sent.of(lambda item: item.get("transaction") == "waits")) == 1


# --- structlog -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_lines_of_a_handler_name_its_job_and_none_other(app: tenure.App) -> None:
    tenure_structlog.instrument(app)
    lines: list[dict[str, Any]] = []

    def keep(_logger: Any, _name: str, line: Any) -> str:
        lines.append(dict(line))
        return ""

    log = structlog.wrap_logger(None, processors=[structlog.contextvars.merge_contextvars, keep, lambda *_: drop()])

    def drop() -> Any:
        raise structlog.DropEvent

    @app.job(queue="mail")
    def sync(word: str) -> None:
        log.info(word)

    @app.job(queue="mail")
    async def on_loop(word: str) -> None:
        log.info(word)

    first = sync.options(tenant="acme").enqueue("one")
    second = on_loop.enqueue("two")
    drain(app)
    log.info("outside")

    told = {line["event"]: line for line in lines}
    assert told["one"] == {
        "event": "one",
        "job": first.id,
        "kind": "sync",
        "queue": "mail",
        "attempt": 1,
        "tenant": "acme",
    }
    assert (told["two"]["job"], "tenant" in told["two"]) == (second.id, False)
    assert told["outside"] == {"event": "outside"}
