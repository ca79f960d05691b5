-- profile_found: whether a profile is installed.
SELECT 1 FROM tenure_profile WHERE name = ?;
