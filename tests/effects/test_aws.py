"""sync_aws against a real moto server over HTTP, with a proxy that cuts replies: one resource, whatever gets lost."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

import tenure
from tenure.effects import aws, aws_resources
from tenure.effects.kinds import Kit
from tenure.testing import ManualClock, drain, temporary_app
from tests.effects.cloud_control import CloudControl, faults_of_answer, faults_of_request
from tests.effects.conftest import app_at, on_both_engines
from tests.effects.proxies import CuttingProxy, Reply, Rule, Seen

BUCKET = "AWS::S3::Bucket"
OBJECT = "AWS::S3::Object"
QUEUE = "AWS::SQS::Queue"
TABLE = "AWS::DynamoDB::Table"
TABLE_CONFIG = {
    "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
    "BillingMode": "PAY_PER_REQUEST",
}
THROTTLED = Reply(
    400,
    b'{"__type":"ThrottlingException","message":"slow down"}',
    {"Content-Type": "application/x-amz-json-1.0", "Retry-After": "45"},
)


@pytest.fixture(scope="session")
def moto_port() -> Iterator[int]:
    from moto.server import ThreadedMotoServer

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    yield port
    server.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(aws_resources, "POLL_SECONDS", 0.01)


@pytest.fixture(scope="session")
def shared_proxy(moto_port: int) -> Iterator[CuttingProxy]:
    with CuttingProxy(moto_port) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def kit(shared_proxy: CuttingProxy) -> Kit:
    """One for all tests: making clients is what takes long about boto3."""
    return aws(region="us-east-1", endpoint_url=shared_proxy.url)


@pytest.fixture
def proxy(shared_proxy: CuttingProxy) -> CuttingProxy:
    """Moto as new, behind a proxy that cuts nothing yet."""
    with closing(http.client.HTTPConnection("127.0.0.1", shared_proxy.target_port)) as reset:
        reset.request("POST", "/moto-api/reset")
        assert reset.getresponse().read()
    shared_proxy.rules.clear()
    shared_proxy.seen.clear()
    return shared_proxy


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(proxy: CuttingProxy, kit: Kit, clock: ManualClock, store_url: str) -> Iterator[tenure.App]:
    with app_at(tenure.App().use(kit), store_url, clock) as app:
        app.queues.set("aws", backoff=tenure.Backoff(shape="none"))
        yield app


def client(url: str, service: str) -> Any:
    import boto3

    return boto3.client(service, endpoint_url=url, region_name="us-east-1")  # type: ignore[call-overload]


def sync(app: tenure.App, kind: str, name: str, config: dict[str, Any] | None = None, **more: Any) -> tenure.Job:
    job_id = app.enqueue("sync_aws", {"resourceType": kind, "resourceId": name, "config": config or {}, **more}).id
    drain(app, raise_errors=False)
    return app.get(job_id)


@on_both_engines
def test_a_bucket_is_created_changed_left_alone_and_deleted(app: tenure.App, proxy: CuttingProxy) -> None:
    s3 = client(proxy.url, "s3")

    created = sync(app, BUCKET, "bucket-1", {"Versioning": "Enabled", "Tags": {"team": "ops"}})
    again = sync(app, BUCKET, "bucket-1", {"Versioning": "Enabled"})
    updated = sync(app, BUCKET, "bucket-1", {"Tags": {"team": "dev"}})
    tags = s3.get_bucket_tagging(Bucket="bucket-1")["TagSet"]
    deleted = sync(app, BUCKET, "bucket-1", operation="delete")
    absent = sync(app, BUCKET, "bucket-1", operation="delete")

    actions = [job.result["action"] for job in (created, again, updated, deleted, absent)]
    assert actions == ["created", "unchanged", "updated", "deleted", "absent"]
    assert tags == [{"Key": "team", "Value": "dev"}]


@on_both_engines
def test_an_object_is_written_and_compared_by_its_content(app: tenure.App, proxy: CuttingProxy) -> None:
    s3 = client(proxy.url, "s3")
    s3.create_bucket(Bucket="bucket-2")

    first = sync(
        app, OBJECT, "bucket-2/dir/f.txt", {"Body": "one", "ContentType": "text/plain", "Metadata": {"a": "1"}}
    )
    same = sync(app, OBJECT, "bucket-2/dir/f.txt", {"Body": "one"})
    other = sync(app, OBJECT, "bucket-2/dir/f.txt", {"Body": "dHdv", "BodyEncoding": "base64"})

    assert [job.result["action"] for job in (first, same, other)] == ["created", "unchanged", "updated"]
    assert s3.get_object(Bucket="bucket-2", Key="dir/f.txt")["Body"].read() == b"two"
    assert sync(app, OBJECT, "bucket-2/dir/f.txt", operation="delete").result["action"] == "deleted"


@on_both_engines
def test_a_queue_and_its_attributes(app: tenure.App, proxy: CuttingProxy) -> None:
    sqs = client(proxy.url, "sqs")

    created = sync(app, QUEUE, "q1", {"Attributes": {"VisibilityTimeout": 45}, "Tags": {"team": "ops"}})
    updated = sync(app, QUEUE, "q1", {"Attributes": {"VisibilityTimeout": "50"}})

    assert [job.result["action"] for job in (created, updated)] == ["created", "updated"]
    url = sqs.get_queue_url(QueueName="q1")["QueueUrl"]
    assert sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]["VisibilityTimeout"] == "50"
    assert sync(app, QUEUE, "q1", operation="delete").result["action"] == "deleted"


@on_both_engines
def test_a_table_and_what_cannot_be_changed_about_it(app: tenure.App) -> None:
    created = sync(app, TABLE, "t1", TABLE_CONFIG)
    throughput = {"ReadCapacityUnits": 3, "WriteCapacityUnits": 2}
    updated = sync(app, TABLE, "t1", {"BillingMode": "PROVISIONED", "ProvisionedThroughput": throughput})
    other_key = sync(app, TABLE, "t1", {"KeySchema": [{"AttributeName": "name", "KeyType": "HASH"}]})

    assert [job.result["action"] for job in (created, updated)] == ["created", "updated"]
    assert (other_key.state, other_key.attempt) == ("failed", 1)
    assert "KeySchema" in (other_key.last_error or "")
    assert sync(app, TABLE, "t1", operation="delete").state == "succeeded"


def test_create_and_update_insist_on_what_is_there(app: tenure.App) -> None:
    missing = sync(app, QUEUE, "q2", operation="update")
    created = sync(app, QUEUE, "q2", {"Attributes": {"VisibilityTimeout": 45}}, operation="create")
    same = sync(app, QUEUE, "q2", {"Attributes": {"VisibilityTimeout": 45}}, operation="create")
    other = sync(app, QUEUE, "q2", {"Attributes": {"VisibilityTimeout": 46}}, operation="create")

    assert [job.state for job in (missing, created, same, other)] == ["failed", "succeeded", "succeeded", "failed"]


def is_put_bucket(seen: Seen) -> bool:
    return seen.method == "PUT" and seen.path.rstrip("/").count("/") == 1 and "?" not in seen.path


LOST: dict[str, tuple[str, str, dict[str, Any], Callable[[Seen], bool]]] = {
    "bucket": (BUCKET, "lost", {"Versioning": "Enabled"}, is_put_bucket),
    "queue": (QUEUE, "lost", {"Attributes": {"VisibilityTimeout": 45}}, lambda seen: seen.target == "CreateQueue"),
    "table": (TABLE, "lost", TABLE_CONFIG, lambda seen: seen.target == "CreateTable"),
}


@on_both_engines
@pytest.mark.parametrize("operation", ["apply", "create"])
@pytest.mark.parametrize("sort", LOST)
def test_a_reply_that_got_lost_makes_no_second_resource(
    app: tenure.App, proxy: CuttingProxy, sort: str, operation: str
) -> None:
    kind, name, config, matches = LOST[sort]
    proxy.rules.append(Rule(matches))

    job = sync(app, kind, name, config, operation=operation)

    assert (job.state, job.attempt) == ("succeeded", 2)
    assert sum(map(matches, proxy.seen)) == 1
    assert list(app.effects.reconcile()) == []


@on_both_engines
def test_a_resource_that_was_half_made_is_completed(app: tenure.App, proxy: CuttingProxy) -> None:
    proxy.rules.append(Rule(lambda seen: "versioning" in seen.path and seen.method == "PUT", Reply(500, b"")))

    job = sync(app, BUCKET, "half", {"Versioning": "Enabled"}, operation="create")

    assert (job.state, job.attempt, job.result["action"]) == ("succeeded", 2, "updated")


@on_both_engines
def test_being_throttled_spends_no_attempt_and_waits_as_long_as_asked(
    app: tenure.App, proxy: CuttingProxy, clock: ManualClock
) -> None:
    proxy.rules.append(Rule(lambda seen: seen.target == "CreateTable", THROTTLED, times=5))

    job = sync(app, TABLE, "slow", TABLE_CONFIG)

    assert (job.state, job.attempt) == ("queued", 0)
    assert job.run_at - clock.now() == timedelta(seconds=45)
    (attempt,) = app.attempts(job.id)
    assert (attempt.outcome, attempt.failure_class) == ("released", "rate_limited")
    for _ in range(5):
        clock.advance(45)
        drain(app, raise_errors=False)
    ended = app.get(job.id)
    assert (ended.state, ended.attempt) == ("succeeded", 1)


@on_both_engines
def test_a_refusal_is_for_good_and_a_breakdown_is_not(app: tenure.App, proxy: CuttingProxy) -> None:
    denied = Reply(
        403, b'{"__type":"AccessDeniedException","message":"no"}', {"Content-Type": "application/x-amz-json-1.0"}
    )
    proxy.rules.append(Rule(lambda seen: b"denied" in seen.body, denied, times=9))
    proxy.rules.append(Rule(lambda seen: b"broken" in seen.body, Reply(500, b"{}"), times=2))

    refused = sync(app, TABLE, "denied", TABLE_CONFIG)
    broken = sync(app, TABLE, "broken", TABLE_CONFIG)

    assert (refused.state, refused.attempt, refused.failure_class) == ("failed", 1, "permanent")
    assert (broken.state, broken.attempt) == ("succeeded", 3)


@pytest.mark.parametrize(
    "config",
    [
        {"aws_access_key_id": "x"},
        {"nested": [{"SecretAccessKey": "x"}]},
        {"note": "use AKIAIOSFODNN7EXAMPLE"},
        {"Attributes": {"sessionToken": "ASIAIOSFODNN7EXAMPLE"}},
    ],
)
def test_keys_in_a_payload_are_refused_at_enqueue(app: tenure.App, config: dict[str, Any]) -> None:
    with pytest.raises(tenure.InvalidPayload, match="credentials") as refusal:
        app.enqueue("sync_aws", {"resourceType": BUCKET, "resourceId": "b", "config": config})

    assert "AKIA" not in str(refusal.value)


def test_a_role_is_taken_on_for_each_job_and_tagged_with_it(proxy: CuttingProxy) -> None:
    role = "arn:aws:iam::123456789012:role/tenure-buckets"
    kit = aws(region="us-east-1", endpoint_url=proxy.url, roles={BUCKET: role})
    with temporary_app(tenure.App().use(kit)) as app:
        job = sync(app, BUCKET, "bucket-3")

    assert job.state == "succeeded"
    (assumed,) = [seen.body.decode() for seen in proxy.seen if b"AssumeRole" in seen.body]
    assert "tenure-buckets" in assumed
    assert f"RoleSessionName=tenure-{job.id}" in assumed
    assert f"Tags.member.1.Value={job.id}" in assumed
    keys = {seen.headers["authorization"].partition("Credential=")[2].partition("/")[0] for seen in proxy.seen}
    assert len(keys) == 2, "the bucket was made with the worker's own key"


@on_both_engines
def test_reconciliation_reads_back(app: tenure.App, proxy: CuttingProxy) -> None:
    jobs = {
        name: sync(app, QUEUE, name, {"Attributes": {"VisibilityTimeout": 45}}) for name in ("kept", "gone", "other")
    }
    deleted = sync(app, QUEUE, "back", operation="delete")
    sqs = client(proxy.url, "sqs")
    sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName="gone")["QueueUrl"])
    url = sqs.get_queue_url(QueueName="other")["QueueUrl"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "9"})
    sqs.create_queue(QueueName="back")

    found = {one.job_id: one.sort for one in app.effects.reconcile()}

    assert found == {jobs["gone"].id: "missing", jobs["other"].id: "changed", deleted.id: "still_there"}


# Types without a driver of their own.


@pytest.fixture
def control() -> Iterator[CloudControl]:
    with CloudControl() as server:
        yield server
    assert server.breaches == []


@pytest.fixture
def generic(control: CloudControl, clock: ManualClock, store_url: str) -> Iterator[tuple[tenure.App, CuttingProxy]]:
    with CuttingProxy(control.port) as proxy:
        kit = aws(region="us-east-1", endpoint_url=proxy.url)
        with app_at(tenure.App().use(kit), store_url, clock) as app:
            app.queues.set("aws", backoff=tenure.Backoff(shape="none"))
            yield app, proxy


FUNCTION = "AWS::Lambda::Function"


def test_moto_has_no_cloud_control_which_is_why_there_is_a_stand_in(app: tenure.App) -> None:
    """It breaks down over the very first look. On the day this fails, the tests below can be run against moto."""
    from moto.backend_index import backend_url_patterns

    job = sync(app, FUNCTION, "mine", {"MemorySize": 128})

    assert (job.state, job.attempt) == ("dead", 3)
    assert "AwsTrouble: 500" in (job.last_error or "")
    assert [name for name, _ in backend_url_patterns if "cloudcontrol" in name] == []


def test_the_stand_in_refuses_what_aws_would() -> None:
    """The check that keeps it honest can itself say no."""
    asked = {"TypeName": FUNCTION, "DesiredState": "{}", "ClientToken": "a"}
    event = {"OperationStatus": "SUCCESS", "Operation": "CREATE"}

    assert faults_of_request("CreateResource", asked) == []
    assert faults_of_answer("CreateResource", 200, {"ProgressEvent": event}) == []
    for name, wrong in (("DesiredState", {}), ("ClientToken", "no blanks"), ("TypeName", "short"), ("Identifier", "x")):
        assert faults_of_request("CreateResource", {**asked, name: wrong}), name
    assert faults_of_request("MakeResource", asked)
    assert faults_of_request("CreateResource", {"TypeName": FUNCTION})
    assert faults_of_answer("CreateResource", 200, {"ProgressEvent": event | {"OperationStatus": "DONE"}})
    assert faults_of_answer("CreateResource", 200, {"ProgressEvent": event | {"EventTime": "now"}})
    assert faults_of_answer("GetResourceRequestStatus", 400, {"__type": "ThrottlingException", "message": ""})


@on_both_engines
def test_any_other_type_goes_through_cloud_control(
    generic: tuple[tenure.App, CuttingProxy], control: CloudControl
) -> None:
    app, _ = generic

    created = sync(app, FUNCTION, "mine", {"MemorySize": 128})
    identifier = created.result["identifier"]
    updated = sync(app, FUNCTION, identifier, {"MemorySize": 256})
    same = sync(app, FUNCTION, identifier, {"MemorySize": 256})

    assert [job.result["action"] for job in (created, updated, same)] == ["created", "updated", "unchanged"]
    assert control.resources == {(FUNCTION, identifier): {"MemorySize": 256, "Id": identifier}}
    assert sync(app, FUNCTION, identifier, operation="delete").result["action"] == "deleted"
    assert sync(app, FUNCTION, identifier, operation="delete").result["action"] == "absent"


@on_both_engines
def test_a_lost_reply_of_cloud_control_is_the_same_request_again(
    generic: tuple[tenure.App, CuttingProxy], control: CloudControl
) -> None:
    """AWS chooses the name, so a look cannot tell; the ClientToken does, which is the job's id."""
    app, proxy = generic
    proxy.rules.append(Rule(lambda seen: seen.target == "CreateResource"))

    job = sync(app, FUNCTION, "mine", {"MemorySize": 128})

    assert (job.state, job.attempt) == ("succeeded", 2)
    assert len([seen for seen in proxy.seen if seen.target == "CreateResource"]) == 2
    assert list(control.by_token) == [job.id]
    assert len(control.resources) == 1


@pytest.mark.parametrize("lost", ["GetResourceRequestStatus", "UpdateResource", "DeleteResource"])
def test_other_lost_replies_of_cloud_control_change_nothing_twice(
    generic: tuple[tenure.App, CuttingProxy], control: CloudControl, lost: str
) -> None:
    app, proxy = generic
    identifier = sync(app, FUNCTION, "mine", {"MemorySize": 128}).result["identifier"]
    proxy.rules.append(Rule(lambda seen: seen.target == lost))

    if lost == "DeleteResource":
        job = sync(app, FUNCTION, identifier, operation="delete")
    else:
        job = sync(app, FUNCTION, identifier, {"MemorySize": 256})

    assert (job.state, job.attempt) == ("succeeded", 2)
    assert len(control.requests) == 2
    assert len(control.resources) == (0 if lost == "DeleteResource" else 1)


@on_both_engines
@pytest.mark.parametrize(
    ("code", "attempts"), [("ServiceInternalError", 2), ("NotStabilized", 2), ("Throttling", 1)], ids=str
)
def test_a_request_that_failed_in_passing_is_made_anew_and_makes_one_resource(
    generic: tuple[tenure.App, CuttingProxy], control: CloudControl, clock: ManualClock, code: str, attempts: int
) -> None:
    """AWS answers the same ClientToken with the same failure for ever; so a new request needs a new one."""
    app, _ = generic
    control.failures.append(f"{code}: not today")

    job = sync(app, FUNCTION, "mine", {"MemorySize": 128})
    if code == "Throttling":
        assert (job.state, job.attempt) == ("queued", 0)
        assert app.attempts(job.id)[0].failure_class == "rate_limited"
        clock.advance(10)
        drain(app, raise_errors=False)
        job = app.get(job.id)

    assert (job.state, job.attempt) == ("succeeded", attempts)
    assert len(control.resources) == 1
    assert list(control.by_token) == [job.id] if code == "NotStabilized" else [job.id, f"{job.id}-1"]
    assert list(app.effects.reconcile()) == []


@on_both_engines
def test_cloud_control_that_throttles_spends_no_attempt(
    generic: tuple[tenure.App, CuttingProxy], control: CloudControl, clock: ManualClock
) -> None:
    app, proxy = generic
    proxy.rules.append(Rule(lambda seen: seen.target == "CreateResource", THROTTLED))

    job = sync(app, FUNCTION, "mine", {"MemorySize": 128})

    assert (job.state, job.attempt, job.run_at - clock.now()) == ("queued", 0, timedelta(seconds=45))
    clock.advance(45)
    drain(app, raise_errors=False)
    ended = app.get(job.id)
    assert (ended.state, ended.attempt, len(control.resources)) == ("succeeded", 1, 1)


def test_a_request_that_takes_long_is_waited_for_without_a_slot(
    generic: tuple[tenure.App, CuttingProxy],
    control: CloudControl,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, _ = generic
    monkeypatch.setattr(aws_resources, "POLL_MOST", 0.0)

    job = sync(app, FUNCTION, "mine", {"MemorySize": 128})
    assert (job.state, job.attempt) == ("queued", 0)
    clock.advance(5)
    drain(app, raise_errors=False)

    ended = app.get(job.id)
    assert (ended.state, ended.attempt, len(control.requests)) == ("succeeded", 1, 1)


def test_one_that_goes_while_it_is_deleted_is_gone(
    generic: tuple[tenure.App, CuttingProxy], control: CloudControl
) -> None:
    app, _ = generic
    identifier = sync(app, FUNCTION, "mine", {"MemorySize": 128}).result["identifier"]
    control.failures.append("NotFound: it is gone")

    assert sync(app, FUNCTION, identifier, operation="delete").result["action"] == "deleted"


@on_both_engines
def test_what_cloud_control_could_not_do_is_told(generic: tuple[tenure.App, CuttingProxy]) -> None:
    app, _ = generic

    job = sync(app, FUNCTION, "mine", {"Bad": True})

    assert (job.state, job.attempt) == ("failed", 1)
    assert "Bad is not allowed" in (job.last_error or "")
    assert sync(app, "no type", "x").state == "failed"
