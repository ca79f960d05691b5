-- exchange_setup: an exchange as one statement, made on the writer's own connection: whatever is inserted into this view is carried out.
-- The rules are those of complete_plain.sql, complete_batch.sql, claim_pick.sql and claim.sql, in this order. Ended jobs are
-- looked up first and written by their place: an UPDATE that looks them up itself sorts their ids and visits each row twice. In a trigger no
-- UPDATE may name its index: the plus signs keep SQLite from any other way to the rows, and results stand in a table so that a join has no
-- order to choose.
-- Nothing is done unless all of it can be: an end that is not taken in (a lost lease, a cancel, a repeat) undoes the statement.
-- What was granted is read after the commit, by exchange_told.sql: here it would have to be stored to come out.
CREATE TEMP TABLE tenure_picked (number INTEGER NOT NULL, rowids TEXT NOT NULL) STRICT;

CREATE TEMP TABLE tenure_rich (
    id TEXT NOT NULL PRIMARY KEY,
    token INTEGER NOT NULL,
    result TEXT,
    result_summary TEXT,
    artifacts_path TEXT
) STRICT, WITHOUT ROWID;

CREATE TEMP VIEW tenure_exchange AS
SELECT NULL AS plain, NULL AS plain_number, NULL AS token, NULL AS rich, NULL AS rich_number, NULL AS now,
    NULL AS queue, NULL AS "limit", NULL AS worker, NULL AS state, NULL AS started_at, NULL AS lease_until
WHERE FALSE;

CREATE TEMP TRIGGER tenure_exchange_made INSTEAD OF INSERT ON tenure_exchange
BEGIN
    DELETE FROM tenure_picked;
    DELETE FROM tenure_rich;
    UPDATE tenure_job
    SET state = 'succeeded',
        result = NULL,
        result_summary = NULL,
        finished_at = NEW.now,
        updated_at = NEW.now,
        started_at = coalesce(started_at, claimed_at),
        lease_owner = NULL,
        lease_until = NULL,
        dedup_slot = CASE WHEN dedup_slot IS NOT NULL AND substr(dedup_slot, 1, 1) <> 'a' THEN dedup_slot END
    WHERE rowid IN (SELECT held.rowid FROM json_each(NEW.plain) AS ended CROSS JOIN tenure_job AS held ON held.id = ended.value)
        AND token = NEW.token
        AND +state IN ('leased', 'running')
        AND +lease_until > NEW.now
        AND cancel_requested_at IS NULL;
    SELECT RAISE(ABORT, 'not every end was taken in') WHERE changes() <> NEW.plain_number;
    INSERT INTO tenure_rich (id, token, result, result_summary, artifacts_path)
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4
    FROM json_each(NEW.rich);
    UPDATE tenure_job
    SET state = 'succeeded',
        (result, result_summary, artifacts_path) = (
            SELECT result, result_summary, coalesce(rich.artifacts_path, tenure_job.artifacts_path)
            FROM tenure_rich AS rich
            WHERE rich.id = tenure_job.id
        ),
        finished_at = NEW.now,
        updated_at = NEW.now,
        started_at = coalesce(started_at, claimed_at),
        lease_owner = NULL,
        lease_until = NULL,
        dedup_slot = CASE WHEN dedup_slot IS NOT NULL AND substr(dedup_slot, 1, 1) <> 'a' THEN dedup_slot END
    WHERE rowid IN (SELECT held.rowid FROM tenure_rich AS ended CROSS JOIN tenure_job AS held ON held.id = ended.id)
        AND token = (SELECT token FROM tenure_rich AS rich WHERE rich.id = tenure_job.id)
        AND +state IN ('leased', 'running')
        AND +lease_until > NEW.now
        AND cancel_requested_at IS NULL;
    SELECT RAISE(ABORT, 'not every end was taken in') WHERE changes() <> NEW.rich_number;
    INSERT INTO tenure_picked (number, rowids)
    SELECT count(*), json_group_array(job)
    FROM (
        SELECT rowid AS job
        FROM tenure_job INDEXED BY job_claim_idx
        WHERE queue = NEW.queue AND state = 'queued' AND is_due = 1
        ORDER BY rank, run_at, id
        LIMIT NEW."limit"
    );
    UPDATE tenure_job
    SET state = NEW.state,
        token = token + 1,
        attempt = attempt + 1,
        lease_owner = NEW.worker,
        lease_until = NEW.lease_until,
        claimed_at = NEW.now,
        started_at = coalesce(started_at, NEW.started_at),
        updated_at = NEW.now
    WHERE rowid IN (SELECT value FROM json_each((SELECT rowids FROM tenure_picked)))
        AND +state = 'queued';
    SELECT RAISE(ABORT, 'not every job was granted') WHERE changes() <> (SELECT number FROM tenure_picked);
END;
