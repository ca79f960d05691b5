SELECT count(*)
FROM dbos.workflow_status
WHERE status = 'SUCCESS';
