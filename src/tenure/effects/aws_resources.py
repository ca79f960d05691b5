"""AWS resources, each with four verbs: read what is there, create, update, delete. All are safe to repeat.

A resource answers `read` in the words of its configuration, so that comparing the two is a matter of data. What a
configuration does not mention is not compared, and not touched.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Protocol

from tenure.handler.signals import Permanent
from tenure.model.frozen import frozen

Config = Mapping[str, Any]
Client = Callable[[str], Any]
"""The name of a service → its boto3 client."""

POLL_SECONDS = 0.2
POLL_MOST = 60.0


_PASSING_ENDS = {
    "InternalFailure",
    "NetworkFailure",
    "NotStabilized",
    "ResourceConflict",
    "ServiceInternalError",
    "ServiceTimeout",
}
"""Ends of a Cloud Control request that another one may not have."""


class Pending(Exception):
    """AWS is still at it; the next attempt finds out."""


class Busy(Exception):
    """AWS took the request and gave up on it for want of room."""


class RequestBroke(Exception):
    """AWS took the request and could not finish it; another one may go better."""


@frozen
class Ask:
    """One job's wish."""

    id: str
    config: Config
    token: str
    """The same in all attempts of a job: AWS takes a repeat for what it is."""
    remember: Callable[[Mapping[str, Any]], None]
    """Keep something for later attempts, before it is relied upon."""
    known: Mapping[str, Any]
    """What earlier attempts kept."""


class Resource(Protocol):
    """How one type of resource is read and changed."""

    def read(self, client: Client, ask: Ask) -> Config | None: ...
    def create(self, client: Client, ask: Ask) -> None: ...
    def update(self, client: Client, ask: Ask, found: Config) -> None: ...
    def delete(self, client: Client, ask: Ask) -> None: ...


def differences(wanted: Config, found: Config) -> list[str]:
    """The names under which what is there is not what is wanted. Nested objects count where they are mentioned."""
    return [name for name, value in wanted.items() if not _fits(value, found.get(name))]


def _fits(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return all(_fits(value, found.get(name)) for name, value in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(any(_fits(one, other) for other in found) for one in wanted)
    if isinstance(found, str) and not isinstance(wanted, str):  # some services tell numbers and policies as text
        return _texts({"": wanted})[""] == found or (isinstance(wanted, Mapping) and _fits(wanted, _parsed(found)))
    return bool(wanted == found)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


class Bucket:
    """AWS::S3::Bucket. Config: Region, Versioning (Enabled, Suspended), Tags (an object)."""

    def read(self, client: Client, ask: Ask) -> Config | None:
        s3 = client("s3")
        try:
            s3.head_bucket(Bucket=ask.id)
        except Exception as exc:
            if status_of(exc) == 404:
                return None
            raise
        region = s3.get_bucket_location(Bucket=ask.id).get("LocationConstraint") or "us-east-1"
        found: dict[str, Any] = {"Region": region}
        found["Versioning"] = s3.get_bucket_versioning(Bucket=ask.id).get("Status", "Suspended")
        try:
            tags = s3.get_bucket_tagging(Bucket=ask.id)["TagSet"]
        except Exception as exc:
            if code_of(exc) != "NoSuchTagSet":
                raise
            tags = []
        return found | {"Tags": {tag["Key"]: tag["Value"] for tag in tags}}

    def create(self, client: Client, ask: Ask) -> None:
        s3 = client("s3")
        region = ask.config.get("Region", s3.meta.region_name)
        place = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        try:
            s3.create_bucket(Bucket=ask.id, **place)
        except Exception as exc:
            if code_of(exc) != "BucketAlreadyOwnedByYou":
                raise
        self.update(client, ask, {"Region": region})

    def update(self, client: Client, ask: Ask, found: Config) -> None:
        s3 = client("s3")
        for name in differences(ask.config, found):
            if name == "Versioning":
                s3.put_bucket_versioning(Bucket=ask.id, VersioningConfiguration={"Status": ask.config[name]})
            elif name == "Tags":
                tags = [{"Key": key, "Value": value} for key, value in ask.config[name].items()]
                s3.put_bucket_tagging(Bucket=ask.id, Tagging={"TagSet": tags})
            else:
                raise _fixed("bucket", name)

    def delete(self, client: Client, ask: Ask) -> None:
        client("s3").delete_bucket(Bucket=ask.id)


class Object:
    """AWS::S3::Object, whose id is `bucket/key`. Config: Body, BodyEncoding (base64), ContentType, Metadata."""

    def read(self, client: Client, ask: Ask) -> Config | None:
        bucket, key = _bucket_and_key(ask.id)
        try:
            found = client("s3").get_object(Bucket=bucket, Key=key)
        except Exception as exc:
            if status_of(exc) == 404:
                return None
            raise
        body = hashlib.sha256()
        with closing(found["Body"]) as stream:
            for chunk in stream.iter_chunks(1 << 20):
                body.update(chunk)
        told = {"ContentType": found.get("ContentType"), "Metadata": found.get("Metadata", {})}
        return {**told, **self._body(ask.config, body.hexdigest())}

    def create(self, client: Client, ask: Ask) -> None:
        bucket, key = _bucket_and_key(ask.id)
        told = {name: ask.config[name] for name in ("ContentType", "Metadata") if name in ask.config}
        client("s3").put_object(Bucket=bucket, Key=key, Body=_bytes(ask.config), **told)

    def update(self, client: Client, ask: Ask, found: Config) -> None:  # noqa: ARG002 - an object is written whole
        self.create(client, ask)

    def delete(self, client: Client, ask: Ask) -> None:
        bucket, key = _bucket_and_key(ask.id)
        client("s3").delete_object(Bucket=bucket, Key=key)

    def _body(self, config: Config, digest: str) -> Config:
        """The body as the configuration has it if it is the same; otherwise its hash, which nothing equals."""
        if "Body" not in config:
            return {}
        is_same = hashlib.sha256(_bytes(config)).hexdigest() == digest
        body = config["Body"] if is_same else f"sha256:{digest}"
        return {"Body": body, "BodyEncoding": config.get("BodyEncoding")}


class Queue:
    """AWS::SQS::Queue. Config: Attributes, Tags."""

    def read(self, client: Client, ask: Ask) -> Config | None:
        sqs = client("sqs")
        url = self._url(sqs, ask.id)
        if url is None:
            return None
        attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]).get("Attributes", {})
        return {"Attributes": attributes, "Tags": sqs.list_queue_tags(QueueUrl=url).get("Tags", {})}

    def create(self, client: Client, ask: Ask) -> None:
        told = {"Attributes": _texts(ask.config.get("Attributes", {})), "tags": ask.config.get("Tags", {})}
        client("sqs").create_queue(QueueName=ask.id, **told)

    def update(self, client: Client, ask: Ask, found: Config) -> None:
        sqs = client("sqs")
        url = self._url(sqs, ask.id)
        for name in differences(ask.config, found):
            if name == "Attributes":
                sqs.set_queue_attributes(QueueUrl=url, Attributes=_texts(ask.config[name]))
            elif name == "Tags":
                sqs.tag_queue(QueueUrl=url, Tags=ask.config[name])
            else:
                raise _fixed("queue", name)

    def delete(self, client: Client, ask: Ask) -> None:
        sqs = client("sqs")
        url = self._url(sqs, ask.id)
        if url is not None:
            sqs.delete_queue(QueueUrl=url)

    def _url(self, sqs: Any, name: str) -> str | None:
        try:
            return str(sqs.get_queue_url(QueueName=name)["QueueUrl"])
        except Exception as exc:
            if "NonExistentQueue" in code_of(exc) or "QueueDoesNotExist" in code_of(exc):
                return None
            raise


class Table:
    """AWS::DynamoDB::Table. Config: KeySchema, AttributeDefinitions, BillingMode, ProvisionedThroughput."""

    def read(self, client: Client, ask: Ask) -> Config | None:
        try:
            table = client("dynamodb").describe_table(TableName=ask.id)["Table"]
        except Exception as exc:
            if code_of(exc) == "ResourceNotFoundException":
                return None
            raise
        if table["TableStatus"] == "DELETING":
            raise Pending(f"table {ask.id!r} is being deleted")
        found = {name: table[name] for name in ("KeySchema", "AttributeDefinitions") if name in table}
        capacity = table.get("ProvisionedThroughput", {})
        found["ProvisionedThroughput"] = {
            name: capacity[name] for name in ("ReadCapacityUnits", "WriteCapacityUnits") if name in capacity
        }
        found["BillingMode"] = table.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
        return found

    def create(self, client: Client, ask: Ask) -> None:
        dynamodb = client("dynamodb")
        try:
            dynamodb.create_table(TableName=ask.id, **ask.config)
        except Exception as exc:
            if code_of(exc) != "ResourceInUseException":
                raise
        self._wait(dynamodb, ask.id)

    def update(self, client: Client, ask: Ask, found: Config) -> None:
        changed = differences(ask.config, found)
        if fixed := set(changed) - {"BillingMode", "ProvisionedThroughput"}:
            raise _fixed("table", min(fixed))
        dynamodb = client("dynamodb")
        dynamodb.update_table(TableName=ask.id, **{name: ask.config[name] for name in changed})
        self._wait(dynamodb, ask.id)

    def delete(self, client: Client, ask: Ask) -> None:
        client("dynamodb").delete_table(TableName=ask.id)

    def _wait(self, dynamodb: Any, name: str) -> None:
        until = time.monotonic() + POLL_MOST
        while dynamodb.describe_table(TableName=name)["Table"]["TableStatus"] != "ACTIVE":
            if time.monotonic() > until:
                raise Pending(f"table {name!r} is not active yet")
            time.sleep(POLL_SECONDS)


@frozen
class Generic:
    """Any other type, through Cloud Control. Config: the properties of the type's schema.

    Every request carries the job's token as ClientToken, so a repeat after a lost reply is the same request to AWS.
    That also holds for one that failed, which AWS would tell again and again; so once the end of a request is known,
    the next one has a token of its own, counted. What is known of a request is kept: its id as soon as AWS tells it,
    and the identifier, which AWS may have chosen, also if the request failed after it had made the resource.
    """

    type: str

    def read(self, client: Client, ask: Ask) -> Config | None:
        identifier = ask.known.get("identifier", ask.id)
        try:
            found = client("cloudcontrol").get_resource(TypeName=self.type, Identifier=identifier)
        except Exception as exc:
            if code_of(exc) == "ResourceNotFoundException":
                return None
            raise
        properties: Config = json.loads(found["ResourceDescription"]["Properties"])
        return properties

    def create(self, client: Client, ask: Ask) -> None:
        control = client("cloudcontrol")
        request = ask.known.get("request")
        if request is None:
            told = {"TypeName": self.type, "DesiredState": json.dumps(ask.config), "ClientToken": _client_token(ask)}
            request = control.create_resource(**told)["ProgressEvent"]["RequestToken"]
            ask.remember({**ask.known, "request": request})
        self._await(control, request, ask)

    def update(self, client: Client, ask: Ask, found: Config) -> None:
        control = client("cloudcontrol")
        patch = [
            {"op": "replace" if name in found else "add", "path": f"/{_pointer(name)}", "value": ask.config[name]}
            for name in differences(ask.config, found)
        ]
        event = control.update_resource(
            TypeName=self.type,
            Identifier=ask.known.get("identifier", ask.id),
            PatchDocument=json.dumps(patch),
            ClientToken=f"{_client_token(ask)}-{hashlib.sha256(json.dumps(patch).encode()).hexdigest()[:16]}",
        )["ProgressEvent"]
        self._await(control, event["RequestToken"], ask)

    def delete(self, client: Client, ask: Ask) -> None:
        control = client("cloudcontrol")
        event = control.delete_resource(
            TypeName=self.type,
            Identifier=ask.known.get("identifier", ask.id),
            ClientToken=f"{_client_token(ask)}-delete",
        )["ProgressEvent"]
        self._await(control, event["RequestToken"], ask)

    def _await(self, control: Any, request: str, ask: Ask) -> None:
        """Wait for the end of a request and keep it. Raises: Pending, Busy, RequestBroke or Permanent."""
        event = _ended(control, request)
        kept = {name: value for name, value in ask.known.items() if name != "request"}
        kept["ended"] = ask.known.get("ended", 0) + 1
        if event.get("Operation") == "CREATE" and "Identifier" in event:
            kept["identifier"] = event["Identifier"]
        ask.remember(kept)
        if event["OperationStatus"] == "SUCCESS":
            return
        code = str(event.get("ErrorCode", event["OperationStatus"]))
        if code == "NotFound" and event.get("Operation") == "DELETE":
            return
        trouble = f"Cloud Control: {code}: {event.get('StatusMessage', '')}"
        if code == "Throttling":
            raise Busy(trouble)
        raise RequestBroke(trouble) if code in _PASSING_ENDS else Permanent(trouble)


NATIVE: Mapping[str, Resource] = {
    "AWS::S3::Bucket": Bucket(),
    "AWS::S3::Object": Object(),
    "AWS::SQS::Queue": Queue(),
    "AWS::DynamoDB::Table": Table(),
}


def resource_of(resource_type: str) -> Resource:
    """What handles a type. Raises: Permanent for a name that is no type."""
    if resource_type in NATIVE:
        return NATIVE[resource_type]
    if resource_type.count("::") != 2:
        raise Permanent(f"{resource_type!r} is no type of AWS resource; types read like AWS::S3::Bucket.")
    return Generic(resource_type)


def code_of(exc: BaseException) -> str:
    """The error code that AWS gave, or an empty text."""
    response = getattr(exc, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def status_of(exc: BaseException) -> int:
    """The HTTP status that AWS gave, or 0."""
    response = getattr(exc, "response", None)
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) if isinstance(response, dict) else 0


def _client_token(ask: Ask) -> str:
    ended = ask.known.get("ended", 0)
    return f"{ask.token}-{ended}" if ended else ask.token


def _ended(control: Any, request: str) -> Config:
    """How a Cloud Control request ended. Raises: Pending."""
    until = time.monotonic() + POLL_MOST
    while True:
        event: Config = control.get_resource_request_status(RequestToken=request)["ProgressEvent"]
        if event["OperationStatus"] in {"SUCCESS", "FAILED", "CANCEL_COMPLETE"}:
            return event
        if time.monotonic() > until:
            raise Pending(f"Cloud Control request {request} is {event['OperationStatus']}")
        time.sleep(POLL_SECONDS)


def _bucket_and_key(resource_id: str) -> tuple[str, str]:
    bucket, _, key = resource_id.partition("/")
    if not bucket or not key:
        raise Permanent(f"{resource_id!r} is no id of an object; write bucket/key.")
    return bucket, key


def _bytes(config: Config) -> bytes:
    body = str(config.get("Body", ""))
    return base64.b64decode(body, validate=True) if config.get("BodyEncoding") == "base64" else body.encode()


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}


def _pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _fixed(what: str, name: str) -> Permanent:
    return Permanent(f"The {what} cannot be changed to fit: {name} is fixed when it is created, or not known here.")
