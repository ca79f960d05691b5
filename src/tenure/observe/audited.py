"""Why something was done, as the audit has it."""

from __future__ import annotations

from tenure.errors import AccessDenied, Forbidden
from tenure.store.contract import Store
from tenure.store.queries import ListAudit

LOOKED_AT = 50
"""How many of a subject's newest rows are read."""


def reason(store: Store, subject: str, act: str) -> str | None:
    """The reason that was given when `act` was last done to `subject`."""
    try:
        audits = store.do(ListAudit(subject, LOOKED_AT))
    except (Forbidden, AccessDenied):  # a login that reads jobs need not read the audit
        return None
    return next((one.reason for one in audits if one.act == act), None)
