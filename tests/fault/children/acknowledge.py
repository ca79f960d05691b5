"""Enqueues one job after the other and writes `ok` for each that the store has acknowledged. Run under strace.

Arguments: the file of the database, the class in `tests.fault.planted`, how many.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tenure.model.ids import new_job_id
from tenure.model.job import NewJob
from tenure.store.contract import Enqueue
from tests.conformance.engines import sqlite_url
from tests.fault import planted

store = getattr(planted, sys.argv[2])(sqlite_url(Path(sys.argv[1])))
store.migrate()
for _ in range(int(sys.argv[3])):
    store.do(Enqueue([NewJob(new_job_id(), "work")]))
    os.write(1, b"ok\n")
store.close()
