"""A stream as its writer sees it: `ctx.stream("output").write(text)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenure.errors import ConfigError, InvalidArgument
from tenure.handler.steps import is_on_loop

if TYPE_CHECKING:
    from tenure.handler.context import Context


class JobStream:
    """One stream of the job at hand."""

    __slots__ = ("_context", "name")

    def __init__(self, context: Context, name: str) -> None:
        self._context = context
        self.name: str = name

    def write(self, text: str) -> Any:
        """Add text. Readers see it within about a tenth of a second. Await it in an async handler.

        Small texts are gathered, so a write usually costs nothing; it waits while the store is slower than the handler.
        What looks like a secret is taken out. Of the streams of a job 8 MiB are kept; then a marker says that the rest
        of the attempt is not. A new attempt begins its streams anew, and readers are told.

        Raises: LeaseLost once the job has passed to another worker.
        """
        if not isinstance(text, str):
            raise InvalidArgument(f"A stream takes text (str), got {type(text).__name__}.")
        services = self._context.services
        if services.stream is None or services.astream is None:
            raise ConfigError(f"Stream {self.name!r} needs a worker that keeps streams, and this one keeps none.")
        if is_on_loop():
            return services.astream(self._context, self.name, text)
        return services.stream(self._context, self.name, text)
