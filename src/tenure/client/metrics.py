"""What the queues measure: `app.metrics`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from tenure.client.operations import Blocking, Client, Steps, ask, operation
from tenure.handler import arguments
from tenure.handler.arguments import Duration, Names
from tenure.model.usage import BY, Usage
from tenure.store.usage import SumUsage

if TYPE_CHECKING:
    from tenure.flow.metrics import Figures

ROWS_MAX = 1000


class Metrics(Client):
    """Figures by time and queue."""

    @operation
    def metrics(
        self,
        since: datetime | Duration | None = None,
        until: datetime | None = None,
        *,
        by: Literal["minute", "hour", "day", "total"] = "hour",
        queues: Names | None = None,
        quantiles: Sequence[float] = (0.5, 0.95, 0.99),
    ) -> Steps[list[Figures]]:
        """What happened, by time and queue, oldest first: counts, error rate, latency, and quantiles of durations.

        A worker that leads counts each minute some two minutes after it is over. Minutes are kept for 30 days (their
        quantiles for two), hours for 90, days for ever. No jobs are counted for it.

        Args:
            since: A moment, or how far back from now, in seconds or as a timedelta; all there is if left out.
            by: `total` is one row for each queue; over more than six hours it begins at a full hour, over more than a
                week at a full day.

        Raises: InvalidArgument.
        """
        from tenure.flow.metrics import read_figures

        begin = yield from _begin(since)
        end = None if until is None else arguments.moment("until", until)
        return (yield from read_figures(begin, end, by, arguments.names("queues", queues), tuple(quantiles)))

    @operation
    def usage(
        self,
        since: datetime | Duration | None = None,
        until: datetime | None = None,
        *,
        by: Literal["agent", "kind", "job"] = "agent",
        queues: Names | None = None,
        kinds: Names | None = None,
        limit: int = 100,
    ) -> Steps[Usage]:
        """Tokens and cost of the model calls that agent frameworks recorded as steps, the most tokens first.

        Counts the jobs that were made in the span, the newest first, up to 10,000 steps; `is_cut` says that there were
        more. A call whose worker died before it was recorded is not told, and neither are jobs whose data was pruned.

        Args:
            since: A moment, or how far back from now, in seconds or as a timedelta; all there is if left out.
            by: `agent` is the job's queue.

        Raises: InvalidArgument.
        """
        begin = yield from _begin(since)
        request = SumUsage(
            arguments.one_of("by", by, BY)[0],
            begin,
            None if until is None else arguments.moment("until", until),
            arguments.names("queues", queues),
            arguments.names("kinds", kinds),
            arguments.whole("limit", limit, 1, ROWS_MAX),
        )
        return (yield from ask(request))


def _begin(since: datetime | Duration | None) -> Steps[datetime | None]:
    """The moment, or so far back from the store's now."""
    if since is None or isinstance(since, datetime):
        return None if since is None else arguments.moment("since", since)
    back = timedelta(seconds=arguments.seconds("since", since, positive=True))
    now = yield from ask(Blocking(lambda store: store.now()))
    return now - back
