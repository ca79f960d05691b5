"""The outbox: change a JSON data file and enqueue its side effects as one step that survives a crash anywhere.

    outbox.update("users/7.json", change)
        1. one transaction: a job that holds the file's whole new content, and the jobs of the side effects
        2. a worker writes the file: beneath its root, in one step, as often as it takes

Job first, then file: before the commit nothing has happened, after it everything will. Who reads through the outbox
sees the newest accepted content at once, written or not (`read`).

Changes of one file are numbered, and the number is the job's key for ever: of two changes made from the same content
the second is refused by the unique index, and is made again from the newer content. The write of an older number never
lands on a newer one: the file's tickets (see `atomic`) bear the number as token, and before the rename the job asks
whether a newer change was accepted. If so it leaves the file to that one, which contains it.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast
from uuid import NAMESPACE_URL, UUID, uuid5

from tenure.effects.atomic_file import Superseded, Tag, write_file
from tenure.effects.file_jobs import Place, holds, refusals
from tenure.effects.kinds import Finding, Host, Terms, call, fence, register
from tenure.errors import AccessDenied, ConfigError, InvalidArgument, KeyConflict, StoreBusy, StoreUnavailable
from tenure.handler.context import Context
from tenure.model.frozen import frozen
from tenure.model.ids import JobId, new_job_id
from tenure.model.job import Enqueued, Job, NewJob
from tenure.model.policy import QueuePolicy
from tenure.model.state import State
from tenure.sandbox.safe_path import split
from tenure.store.contract import Store
from tenure.store.queries import ListJobs, ListQueues, Page

if TYPE_CHECKING:
    from tenure.effects.payloads import OutboxWrite

TRIES = 100
"""How often a change is made anew because another process was quicker."""
EFFECTS_MAX = 1_000
BATCH_CHARS = 15 << 20
"""Larger batches are split on their way to the database, and would not be one step any more."""
_PATIENCE = (0.05, 0.1, 0.3, 1.0)
_LIVE = ("queued", "leased", "running", "waiting", "succeeded")


class Desk(Host, Protocol):
    """What the outbox needs of an app."""

    def new_job(self, kind: str, payload: Any = ..., **options: Any) -> NewJob: ...
    def enqueue_many(self, jobs: Iterable[NewJob]) -> list[Enqueued]: ...
    @property
    def store(self) -> Store: ...


class Conflict(StoreBusy):
    """Others changed the file so often that this change never came through. Nothing was changed; try again."""

    code = "outbox_conflict"


@frozen
class Accepted:
    """A change that will happen: the job that writes the file, the change's number, the jobs of its side effects."""

    job_id: JobId
    version: int
    effects: tuple[JobId, ...]


class Change:
    """Handed to the function that makes a change, for its side effects. Made anew if the change is."""

    def __init__(self, app: Desk) -> None:
        self._app = app
        self.jobs: list[NewJob] = []
        self.followers: list[dict[str, Any]] = []

    def enqueue(self, kind: str, payload: Any = None, **options: Any) -> JobId:
        """A job that is accepted with the change, and may run before or after the file is written."""
        job = self._app.new_job(kind, {} if payload is None else payload, **options)
        self.jobs.append(job)
        return job.id

    def then(self, kind: str, payload: Any = None, **options: Any) -> None:
        """A job that is enqueued once the file is written, with the completion of that write."""
        checked = self._app.new_job(kind, {} if payload is None else payload, **options)
        self.followers.append({"kind": kind, "payload": json.loads(checked.payload), "options": options})


class Outbox:
    """JSON files beneath a root, changed together with their side effects. `app.use(outbox)` before it is used.

    Its queue remembers keys for ever, so it is not the queue `outbox` of the profile of that name, whose keys are free
    again once a job has ended. Both can be in one database.
    """

    def __init__(self, root: Path | str, *, queue: str = "outbox_files", kind: str = "outbox_write") -> None:
        self._place = Place(root)
        self._kind = kind
        self._terms = Terms(queue, QueuePolicy(key_scope="forever"))
        self._app: Desk | None = None
        self._is_checked = False

    def install(self, app: Host) -> None:
        """Called by `app.use`."""
        self._app = cast(Desk, app)
        register(app, self._kind, self.write, _payload_type, self._terms)
        app.registry.checkers.append(self)

    @property
    def kinds(self) -> tuple[str, ...]:
        return (self._kind,)

    def read(self, path: str) -> Any:
        """The file's content as last accepted, whether or not it has been written yet; None if there is no such file.

        Raises: PathEscape; ValueError, if another program wrote something into it that is not JSON.
        """
        split(path)
        newest = self._newest(path, _LIVE)
        if newest is not None and newest.payload is not None and not _is_written(newest):
            return json.loads(newest.payload["content"])
        try:
            with os.fdopen(self._place.root.open_regular(path), encoding="utf-8") as file:
                return json.load(file)
        except FileNotFoundError:
            return None

    def update(self, path: str, change: Callable[[Any, Change], Any]) -> Accepted:
        """Change a file and enqueue its side effects, all or nothing; durable when this returns.

        `change(data, box)` gets the content as last accepted (None if there is none) and changes it in place, or
        returns the new one. It may be called again if another process was quicker, so it should do nothing else.

        Raises: what `change` raises; InvalidPayload (too large, not JSON); Conflict; StoreUnavailable, and whether it
            was accepted is unknown: `read` tells.
        """
        app = self._desk()
        self._check_queue(app)
        for _ in range(TRIES):
            newest = self._newest(path)
            data = copy.deepcopy(self.read(path))
            box = Change(app)
            returned = change(data, box)
            jobs = [self._job(path, newest, data if returned is None else returned, box), *box.jobs]
            if len(jobs) > EFFECTS_MAX or sum(len(job.payload) for job in jobs) > BATCH_CHARS:
                raise InvalidArgument(
                    f"A change with {len(box.jobs):,} side effects is too large to be accepted in one step: at most "
                    f"{EFFECTS_MAX:,} jobs and {BATCH_CHARS >> 20} MiB. Let a follow-up job enqueue the rest."
                )
            try:
                _patiently(lambda batch=jobs: app.enqueue_many(batch))  # type: ignore[misc]
            except KeyConflict:
                if _version(self._newest(path)) == _version(newest):
                    raise  # it is a side effect's own key that is taken
                continue
            return Accepted(jobs[0].id, _version(newest) + 1, tuple(one.id for one in box.jobs))
        raise Conflict(f"File {path!r} was changed by others {TRIES} times while this change was made. Try it again.")

    def put(self, path: str, data: Any) -> Accepted:
        """Make a file hold `data`, whatever it held."""
        return self.update(path, lambda _, __: data)

    async def aread(self, path: str) -> Any:
        """`read` for async callers."""
        return await asyncio.to_thread(self.read, path)

    async def aupdate(self, path: str, change: Callable[[Any, Change], Any]) -> Accepted:
        """`update` for async callers; `change` is called in a thread."""
        return await asyncio.to_thread(self.update, path, change)

    def write(self, payload: OutboxWrite, ctx: Context) -> dict[str, Any]:
        """The job: write the file unless a newer change was accepted, and enqueue what follows."""
        content = payload.content.encode()
        held = fence(ctx)

        def check() -> None:
            held()
            if self._is_overtaken(payload.path, ctx):
                raise _Overtaken

        done: dict[str, Any] = {"path": payload.path, "version": payload.version}
        try:
            with refusals():
                tag = Tag(f"outbox-{_digest(payload.path)[:32]}", payload.version)
                record = write_file(self._place.root, payload.path, content, overwrite=True, check=check, tag=tag)
            done |= {"sha256": record.sha256, "size": record.size, "superseded": False}
        except _Overtaken:
            done["superseded"] = True
        except Superseded:
            held()  # if it was a newer attempt of this job, the lease tells
            done["superseded"] = True
        for follower in payload.followers:
            ctx.enqueue(follower["kind"], follower["payload"], **follower["options"])
        return done

    @property
    def scope(self) -> str:
        """See Checker."""
        return self._place.scope

    def subject(self, job: Job) -> str | None:
        """See Checker."""
        if not isinstance(job.payload, dict) or not isinstance(job.result, dict) or job.result.get("superseded"):
            return None
        return str(job.payload["path"])

    def check(self, job: Job) -> Finding | None:
        """See Checker."""
        return holds(self._place.root, job.payload["path"], str(job.result.get("sha256")))

    def _job(self, path: str, newest: Job | None, data: Any, box: Change) -> NewJob:
        version = _version(newest) + 1
        told = {
            "path": path,
            "content": json.dumps(data, ensure_ascii=False, indent=2) + "\n",
            "version": version,
            "change": secrets.token_hex(8),  # no two changes are the same payload, so a taken number is always refused
            "followers": box.followers,
        }
        return self._desk().new_job(
            self._kind,
            told,
            key=f"{_digest(path)[:32]}#{version}",
            workflow_id=self._group(path),
            id=_id_after(newest),
            target_ref=path[:200],
        )

    def _newest(self, path: str, states: tuple[str, ...] = ()) -> Job | None:
        request = ListJobs(states=states, kinds=(self._kind,), workflow_id=self._group(path), limit=1)
        page: Page[Job] = self._desk().store.do(request)
        if not page.items:
            return None
        if page.items[0].is_hidden:
            raise AccessDenied(
                f"The newest change of file {path!r} was enqueued by another login, and this one may not read it. "
                "Nothing was changed. Grant this login tenure_reader, or let one login make all changes."
            )
        return page.items[0]

    def _is_overtaken(self, path: str, ctx: Context) -> bool:
        request = ListJobs(states=_LIVE, kinds=(self._kind,), workflow_id=self._group(path), limit=1)
        page: Page[Job] = call(ctx, request)
        return bool(page.items) and page.items[0].id > ctx.id

    def _check_queue(self, app: Desk) -> None:
        """Numbers are only safe where a key counts for ever. Looked at once; a queue that is not there is made so."""
        if self._is_checked:
            return
        rows = app.store.do(ListQueues([self._terms.queue]))
        if rows and rows[0].policy.key_scope != "forever":
            raise ConfigError(
                f"Queue {self._terms.queue!r} forgets keys, so an outbox on it could lose changes. Give the outbox a "
                "queue of its own, or set key_scope to 'forever'."
            )
        self._is_checked = bool(rows)

    def _group(self, path: str) -> str:
        """What the jobs of one file have in common, and are found by: an id made of kind and path."""
        return str(uuid5(NAMESPACE_URL, f"tenure:{self._kind}:{path}"))

    def _desk(self) -> Desk:
        if self._app is None:
            raise ConfigError("The outbox belongs to no app yet. Hand it to one: app.use(outbox).")
        return self._app


class _Overtaken(Exception):
    """A newer change was accepted meanwhile; it contains this one."""


def _patiently(act: Callable[[], Any]) -> Any:
    """Repeating the very same jobs does no harm, so a database that is away for a moment is waited for."""
    for pause in _PATIENCE:
        try:
            return act()
        except StoreUnavailable:
            time.sleep(pause)
    return act()


def _is_written(job: Job) -> bool:
    """Whether the file holds what this change left. One that was left to a newer change, since given up, is not."""
    return job.state is State.SUCCEEDED and not (isinstance(job.result, dict) and job.result.get("superseded"))


def _version(job: Job | None) -> int:
    """The number of a change, from its key: a pruned job has no payload any more."""
    return 0 if job is None or job.key is None else int(job.key.rpartition("#")[2])


def _id_after(newest: Job | None) -> JobId:
    """An id above that of the change before, also if its maker's clock is ahead of ours: the newest is found by id."""
    made = new_job_id()
    if newest is None or made > newest.id:
        return made
    return JobId(str(UUID(int=UUID(newest.id).int + 1 + secrets.randbelow(1 << 32))))


def _digest(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()


def _payload_type() -> Any:
    from tenure.effects.payloads import OutboxWrite

    return OutboxWrite
