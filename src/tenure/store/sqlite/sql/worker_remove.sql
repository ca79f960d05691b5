-- worker_remove: a worker's row goes; what it held was taken back before.
DELETE FROM tenure_worker WHERE id = ?;
