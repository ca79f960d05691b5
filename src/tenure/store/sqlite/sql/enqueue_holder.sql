-- enqueue_holder: who has the slot, since when, and for which payload. A job that came in by plain SQL was not hashed then.
SELECT id, created_at, coalesce(payload_hash, tenure_payload_hash(payload)) FROM tenure_job WHERE dedup_slot = ?;
