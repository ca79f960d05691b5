SELECT count(*)
FROM dbos.workflow_status
WHERE status IN ('ENQUEUED', 'DELAYED', 'PENDING');
