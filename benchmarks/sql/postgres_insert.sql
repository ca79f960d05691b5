INSERT INTO bare.job (id, queue, kind, rank, payload)
VALUES ($1, $2, $3, $4, $5);
