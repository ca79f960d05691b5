"""Frameworks that people have: each module joins one of them to an App and imports it only when it is used.

Nothing else in Tenure imports this package.
"""
