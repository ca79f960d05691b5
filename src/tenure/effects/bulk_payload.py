"""What an act on all that match is asked to do."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Names = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], Field(max_length=50)]
Word = Annotated[str, Field(min_length=1, max_length=1000)]


class BulkFilter(BaseModel):
    """Which jobs; at least one word. The same words as in `tenure jobs ls`, and those of the console's filter: `shown`
    are states as people see them (`queued` without `retry_waiting`). `fingerprint` names a group of dead letters that
    were not replayed or closed; of the other words only `queue` and `kind` hold beside it."""

    model_config = ConfigDict(extra="forbid")

    state: Names = ()
    queue: Names = ()
    kind: Names = ()
    key: Word | None = None
    worker: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    fingerprint: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    shown: Names = ()
    tenant: Word | None = None
    error: Word | None = None
    workflow: Word | None = None
    parent: Word | None = None
    since: datetime | None = None
    """Created at this moment or later."""

    @property
    def is_empty(self) -> bool:
        """Whether it would match every job there is."""
        return not any(getattr(self, name) for name in type(self).model_fields)


class BulkAct(BaseModel):
    """The act, frozen."""

    model_config = ConfigDict(extra="forbid")

    act: Literal["cancel", "revive"]
    filter: BulkFilter
    frozen_at: datetime
    total: int
    is_exact: bool = True
    """Whether `total` was counted to the end."""
    pace: Annotated[float, Field(gt=0, le=10_000)] | None = None
    actor: str
    reason: str
    undoes: str | None = None
    """The id of the act whose cancelled jobs this one revives; then the filter is only shown."""
    undo_from: datetime | None = None
    """When that act was asked for."""
