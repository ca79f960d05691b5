-- audit_write: what somebody with power did.
INSERT INTO tenure_audit (at, actor, act, subject, reason, detail) VALUES (?, ?, ?, ?, ?, ?);
