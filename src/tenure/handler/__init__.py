"""User functions: what is registered, what their payloads look like, and what they are given to work with.

Knows nothing of stores. Lookup is an explicit registry by kind, never an import by name.
"""
