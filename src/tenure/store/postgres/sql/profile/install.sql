-- install: note a profile down; its queues and gates come with it.
SELECT tenure.install_profile(%(request)s::json)
