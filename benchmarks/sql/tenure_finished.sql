-- Jobs of Tenure that ended well.
SELECT count(*) FROM {job} WHERE finished_at IS NOT NULL AND cleaned_at IS NULL AND state = 'succeeded'
