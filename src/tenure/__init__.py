"""Tenure: a durable job queue for agents and for side effects that must not get lost."""
