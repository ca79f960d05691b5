-- What refuses writes while a database is moved, and in one that was moved away.

-- refuse_writes: the trigger on every table that a move copies. TG_ARGV: the move's id and the sentence. The mover itself sets
-- is_writing in its own transaction and takes it back before it commits.
CREATE OR REPLACE FUNCTION tenure.refuse_writes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM tenure.move AS m WHERE m.id = TG_ARGV[0]::uuid AND m.is_writing) THEN
        RAISE EXCEPTION '%', TG_ARGV[1] USING ERRCODE = 'TN020';
    END IF;
    RETURN NULL;
END
$$;
