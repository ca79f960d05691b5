-- drop_workers: workers that served this queue and no other.
DELETE FROM tenure_worker WHERE queues = json_array(:name);
