-- Limiters: see tenure.store.limits and tenure.model.limiter.

-- limiter: a key that has rates or was blocked. A key without a row holds nothing back. Written often, so its pages keep room.
CREATE TABLE tenure.limiter (
    key text PRIMARY KEY,
    per_minute double precision,
    tokens_per_minute double precision,
    tokens_per_job double precision,
    -- requests, tokens: what was saved up at level_at.
    requests double precision NOT NULL DEFAULT 0,
    tokens double precision NOT NULL DEFAULT 0,
    level_at timestamptz NOT NULL,
    blocked_until timestamptz,
    strikes integer NOT NULL DEFAULT 0,
    -- probes, probes_left, probe_at: the newest second of a slow reopening.
    probes integer NOT NULL DEFAULT 0,
    probes_left integer NOT NULL DEFAULT 0,
    probe_at timestamptz,
    reason text,
    updated_at timestamptz NOT NULL,
    CONSTRAINT limiter_key_sound CHECK (btrim(key) <> '' AND length(key) <= 100 AND strpos(key, ',') = 0),
    CONSTRAINT limiter_rates_sound CHECK (
        coalesce(per_minute, 1) > 0 AND coalesce(tokens_per_minute, 1) > 0 AND coalesce(tokens_per_job, 1) > 0 AND strikes >= 0
    )
) WITH (fillfactor = 50);
