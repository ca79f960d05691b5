-- Waiting and held jobs in narrow tables of their own: a claim moves a row of one to the other, and writes the job itself only at its end.
CREATE INDEX bare_finished_idx ON bare_job (finished_at) WHERE finished_at IS NOT NULL;
DROP INDEX bare_claim_idx;
DROP INDEX bare_lease_idx;
CREATE TABLE bare_ready (
    queue TEXT NOT NULL,
    rank INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    id TEXT NOT NULL,
    job INTEGER NOT NULL,
    PRIMARY KEY (queue, rank, run_at, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE bare_held (
    job INTEGER NOT NULL PRIMARY KEY,
    token INTEGER NOT NULL,
    owner INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    claimed_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX bare_held_idx ON bare_held (lease_until);
INSERT INTO bare_ready (queue, rank, run_at, id, job)
SELECT queue, rank, run_at, id, rowid FROM bare_job ORDER BY queue, rank, run_at, id;
