"""The example applications as they are started by their READMEs."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.integrations.served import Program
from tests.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"


def ask(url: str, body: Any = None, *, method: str | None = None) -> tuple[int, Any]:
    """One request with a JSON body: the status and the answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as exc:
        text = exc.read()
        return exc.code, json.loads(text) if text.startswith(b"{") else text.decode()


def await_server(url: str, program: Program) -> None:
    """Return when the server answers at all."""

    def answers() -> bool:
        assert program.process.poll() is None, program.output
        with suppress(urllib.error.URLError, ConnectionError):
            ask(url)
            return True
        return False

    wait_until(answers, 60)
