"""What the built-in kinds take, as pydantic models. Imported when the first of their jobs comes, never before."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tenure.effects.output_schema import why_too_large
from tenure.effects.prompts import prompt_hash
from tenure.sandbox.safe_path import PathEscape, split


def _inside(path: str) -> str:
    try:
        split(path)
    except PathEscape as exc:
        raise ValueError(str(exc)) from exc
    return path


RelativePath = Annotated[str, AfterValidator(_inside)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Uuid = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")]
Timeout = Annotated[float, Field(gt=0, le=86_400)]


class Payload(BaseModel):
    """Unknown fields are refused: a misspelt flag must not be ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CreateFile(Payload):
    """Write a file beneath the root. Existing equal content is success; other content needs `overwrite`."""

    path: RelativePath
    content: str
    overwrite: bool = False
    encoding: Literal["utf-8", "base64"] = "utf-8"
    mode: Annotated[int, Field(ge=0, le=0o777)] = 0o644

    @model_validator(mode="after")
    def _decodes(self) -> CreateFile:
        self.data()
        return self

    def data(self) -> bytes:
        if self.encoding == "utf-8":
            return self.content.encode()
        try:
            return base64.b64decode(self.content, validate=True)
        except binascii.Error as exc:
            raise ValueError(f"the content is not base64: {exc}") from exc


class DeleteFile(Payload):
    """Remove a file beneath the root. One that is not there is success unless `requireExists`."""

    path: RelativePath
    requireExists: bool = False  # noqa: N815 - the specification's word


class OutboxWrite(Payload):
    """The whole content of a data file, as one numbered change left it. Made by the outbox, not by hand."""

    path: RelativePath
    content: str
    version: Annotated[int, Field(ge=1)]
    change: str
    followers: list[dict[str, Any]] = Field(default_factory=list)


class SyncAws(Payload):
    """Make an AWS resource be as `config` says, or be gone."""

    resourceType: Annotated[str, Field(min_length=1, max_length=200)]  # noqa: N815
    resourceId: Annotated[str, Field(min_length=1, max_length=1024)]  # noqa: N815
    config: dict[str, Any] = Field(default_factory=dict)
    operation: Literal["apply", "create", "update", "delete"] = "apply"

    @model_validator(mode="after")
    def _holds_no_keys(self) -> SyncAws:
        if (where := _static_key(self.config, "config")) is not None:
            raise ValueError(f"{where} holds AWS credentials. Give the worker a role instead; jobs carry no keys.")
        return self


class _Prompted(Payload):
    prompt: Annotated[str, Field(min_length=1)]
    targetPath: RelativePath | None = None  # noqa: N815
    promptHash: Sha256 | None = None  # noqa: N815
    outputSchema: dict[str, Any] | None = None  # noqa: N815
    overwrite: bool = False
    timeoutSeconds: Timeout | None = None  # noqa: N815

    @model_validator(mode="after")
    def _schema_is_small(self) -> _Prompted:
        if self.outputSchema is not None and (why := why_too_large(self.outputSchema)) is not None:
            raise ValueError(f"outputSchema is refused: {why}")
        return self

    @model_validator(mode="after")
    def _hash_fits(self) -> _Prompted:
        """The prompt is frozen at enqueue; its hash is part of what is stored."""
        found = prompt_hash(self.prompt)
        if self.promptHash is None:
            object.__setattr__(self, "promptHash", found)
        elif self.promptHash != found:
            raise ValueError("promptHash is not the SHA-256 of prompt: one of them was changed")
        return self


class ClaudeExtraction(_Prompted):
    """Let Claude Code answer a prompt and write the answer to a file."""

    targetPath: RelativePath  # noqa: N815
    requirementId: Annotated[str, Field(min_length=1, max_length=200)]  # noqa: N815


class CodexExec(_Prompted):
    """Let Codex carry out a prompt."""


class CodexSkill(_Prompted):
    """Let Codex use one of the skills that the operator allows."""

    skill: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
    prompt: str = ""


class Agent(_Prompted):
    """Let an agent that the operator configured carry out a prompt."""

    agent: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]


class Report(Payload):
    """Gather the results of jobs into one file."""

    path: RelativePath
    title: Annotated[str, Field(max_length=200)] = "Report"
    format: Literal["markdown", "json"] = "markdown"
    jobIds: Annotated[list[Uuid], Field(max_length=10_000)] = Field(default_factory=list)  # noqa: N815
    workflowId: Uuid | None = None  # noqa: N815
    parentId: Uuid | None = None  # noqa: N815
    waitForAll: bool = True  # noqa: N815
    overwrite: bool = False

    @model_validator(mode="after")
    def _is_about_something(self) -> Report:
        if not (self.jobIds or self.workflowId or self.parentId):
            raise ValueError("name the jobs: jobIds, workflowId or parentId")
        return self


_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\x80-\xff]*")
_OURS = {
    "connection",
    "content-length",
    "expect",
    "host",
    "idempotency-key",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
"""What the sender decides, or what is between two machines only: a payload that set it could split the request."""


class HttpRequest(Payload):
    """Send a request. `secret://name` in a header stands for a secret that only the worker knows."""

    url: Annotated[str, Field(max_length=4000)]
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    headers: dict[str, str] = Field(default_factory=dict)
    body: Any = None
    sign: str | None = None
    """The name of the signing secret; the kit's default if left out."""
    atMostOnce: bool = False  # noqa: N815
    """A receiver that does not tell repeats apart: in doubt the job waits for a person instead of sending again."""
    timeoutSeconds: Annotated[float, Field(gt=0, le=600)] = 30.0  # noqa: N815

    @model_validator(mode="after")
    def _headers_are_plain(self) -> HttpRequest:
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name) or name.lower() in _OURS or name.lower().startswith("tenure-"):
                raise ValueError(f"headers: {name[:100]!r} cannot be set")
            if not _HEADER_VALUE.fullmatch(value):
                raise ValueError(f"headers: the value of {name!r} contains control characters or other scripts")
        if len({name.lower() for name in self.headers}) < len(self.headers):
            raise ValueError("headers: a name is there twice, in two spellings")
        return self


_KEY_ID = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")
_KEY_NAMES = re.compile(r"aws_?(access_?key|secret|session_?token)|secret_?access_?key|access_?key_?id", re.IGNORECASE)


def _static_key(value: Any, where: str) -> str | None:
    if isinstance(value, str):
        return where if _KEY_ID.search(value) else None
    if isinstance(value, dict):
        for name, item in value.items():
            if _KEY_NAMES.search(name.replace("-", "_")) or _KEY_ID.search(name):
                return f"{where}.{name}"
            if (found := _static_key(item, f"{where}.{name}")) is not None:
                return found
    if isinstance(value, list):
        for number, item in enumerate(value):
            if (found := _static_key(item, f"{where}[{number}]")) is not None:
                return found
    return None
