-- heartbeat_held: after heartbeat_batch.sql, which of these jobs are held under the token, and which of them are asked to stop.
SELECT json_group_array(id), json_group_array(id) FILTER (WHERE cancel_requested_at IS NOT NULL)
FROM tenure_job INDEXED BY sqlite_autoindex_tenure_job_1
WHERE id IN (SELECT value FROM json_each(:ids))
    AND token = :token
    AND state IN ('leased', 'running')
    AND lease_until > :now;
