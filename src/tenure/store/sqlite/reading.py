"""Reads: one request, one short transaction, bounded answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tenure.model.job import Job
from tenure.store.reading import GetJobs
from tenure.store.sqlite import rows
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.transaction import Transaction


def get_jobs(transaction: Transaction, request: GetJobs) -> list[Job | None]:
    """See store.reading.GetJobs."""
    found = {row[0]: rows.job(row) for row in transaction.all(load("jobs_by_id"), {"ids": _array(request.job_ids)})}
    return [found.get(job_id) for job_id in request.job_ids]


def _array(values: Sequence[Any]) -> str:
    return json.dumps(list(values))
