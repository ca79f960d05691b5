"""Dead letters: jobs that need a person, grouped by cause, and what was decided about them."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.client.operations import AsyncClient, Client, Steps, SyncClient, ask, operation
from tenure.errors import NotFound
from tenure.handler import arguments
from tenure.handler.arguments import Names
from tenure.model.job import DeadLetter
from tenure.model.outcome import Triage
from tenure.store.admin import TriageDeadLetters
from tenure.store.queries import DeadLetterGroup, GroupDeadLetters, ListDeadLetters, Page

PAGE_MAX = 1_000


class DeadLetters(Client):
    """Jobs that need a person: `app.dead_letters`."""

    @operation
    def all(
        self,
        *,
        triage: Names | None = None,
        queue: Names | None = None,
        kind: Names | None = None,
        fingerprint: str | None = None,
        job_id: str | None = None,
        ids: Iterable[str] = (),
        limit: int = 50,
        after: str | None = None,
    ) -> Steps[Page[DeadLetter]]:
        """Jobs that need a person, newest death first."""
        return (
            yield from ask(
                ListDeadLetters(
                    triage=arguments.one_of("triage", triage, Triage),
                    queues=arguments.names("queue", queue),
                    kinds=arguments.names("kind", kind),
                    fingerprint=fingerprint,
                    job_id=None if job_id is None else arguments.job_id("job_id", job_id),
                    ids=[arguments.uuid_text("ids", one) for one in ids],
                    limit=_limit(limit),
                    after=after,
                )
            )
        )

    @operation
    def groups(self, *, triage: Names | None = Triage.PENDING, limit: int = 50) -> Steps[list[DeadLetterGroup]]:
        """Deaths that look alike, the largest group first. `triage=None` counts the settled ones too."""
        return (yield from ask(GroupDeadLetters(arguments.one_of("triage", triage, Triage), _limit(limit))))

    @operation
    def triage(
        self,
        ids: str | Iterable[str],
        triage: Triage | str,
        *,
        actor: str | None = None,
        note: str | None = None,
        owner: str | None = None,
    ) -> Steps[list[str]]:
        """Write down what was decided about dead letters. Answers the ids that were changed.

        `owner` takes care of them from now on; left out, that stays as it was.

        Raises: NotFound, if a single one was named and is not there.
        """
        given = [ids] if isinstance(ids, str) else list(ids)
        chosen = [arguments.uuid_text("ids", one) for one in given]
        decided = Triage(arguments.word("triage", str(triage), Triage))
        person = None if owner is None else arguments.name("owner", owner)
        changed = yield from ask(TriageDeadLetters(chosen, decided, self._by(actor), note, person))
        if isinstance(ids, str) and not changed:
            raise NotFound(f"There is no dead letter {ids}. `app.dead_letters.all()` lists them.")
        return changed


class SyncDeadLetters(DeadLetters, SyncClient):
    """`app.dead_letters`."""


class AsyncDeadLetters(DeadLetters, AsyncClient):
    """`app.aio.dead_letters`."""


def _limit(value: int) -> int:
    return arguments.whole("limit", value, 1, PAGE_MAX)
