"""An app whose only kind counts: `tenure worker press:app` works on the database of TENURE_URL."""

from __future__ import annotations

import tenure

app = tenure.App(actor="press")


@app.job(lease=30)
def press(number: int) -> int:
    """Answer the next number."""
    return number + 1
