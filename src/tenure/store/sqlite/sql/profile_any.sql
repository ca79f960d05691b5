-- profile_any: whether any profile is installed.
SELECT 1 FROM tenure_profile LIMIT 1;
