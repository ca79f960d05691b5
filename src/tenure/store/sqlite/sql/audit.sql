-- audit: what was done, newest first.
SELECT seq, at, actor, act, subject, reason, detail
FROM tenure_audit
WHERE (:subject IS NULL OR subject = :subject)
ORDER BY seq DESC
LIMIT :limit;
