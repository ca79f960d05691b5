-- profile_set: note a profile down. What operators have set in `settings` stays.
INSERT INTO tenure_profile (name, title, policy, words, settings, shows, checksum, actor, installed_at, updated_at)
VALUES (:name, :title, :policy, :words, :settings, :shows, :checksum, :actor, :now, :now)
ON CONFLICT (name) DO UPDATE
SET title = excluded.title,
    policy = excluded.policy,
    words = excluded.words,
    settings = json_patch(excluded.settings, tenure_profile.settings),
    shows = excluded.shows,
    checksum = excluded.checksum,
    actor = excluded.actor,
    updated_at = excluded.updated_at;
