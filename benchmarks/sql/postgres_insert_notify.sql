-- One statement, one commit, one wake-up.
WITH inserted AS (
    INSERT INTO bare.job (id, queue, kind, rank, payload)
    VALUES ($1, $2, $3, $4, $5)
)
SELECT pg_notify('bare', '');
