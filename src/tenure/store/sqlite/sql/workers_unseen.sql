-- workers_unseen: workers that were not seen since a moment, the longest ago first.
SELECT id FROM tenure_worker WHERE last_seen_at <= :since ORDER BY last_seen_at LIMIT :limit;
