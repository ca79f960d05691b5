"""What the queues measure: `app.metrics`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from tenure.client.operations import Blocking, Client, Steps, ask, operation
from tenure.handler import arguments
from tenure.handler.arguments import Duration, Names

if TYPE_CHECKING:
    from tenure.flow.metrics import Figures


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

        begin = yield from begin_of(since)
        end = None if until is None else arguments.moment("until", until)
        return (
            yield from read_figures(
                begin, end, by, arguments.names("queues", queues), arguments.several("quantiles", quantiles)
            )
        )


def begin_of(since: datetime | Duration | None) -> Steps[datetime | None]:
    """The moment, or so far back from the store's now."""
    if since is None or isinstance(since, datetime):
        return None if since is None else arguments.moment("since", since)
    back = timedelta(seconds=arguments.seconds("since", since, positive=True))
    now = yield from ask(Blocking(lambda store: store.now()))
    return now - back
