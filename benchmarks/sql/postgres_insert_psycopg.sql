-- The same insert with psycopg's placeholders.
INSERT INTO bare.job (id, queue, kind, rank, payload)
VALUES (%s, %s, %s, %s, %s);
