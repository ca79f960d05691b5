-- enqueue_holder: who has the slot, since when, and for which payload.
SELECT id, created_at, payload_hash FROM tenure_job WHERE dedup_slot = ?;
