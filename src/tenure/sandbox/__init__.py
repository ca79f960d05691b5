"""Confinement of child processes: namespaces, Landlock, seccomp, cgroups, rlimits, safe paths, redaction, SSRF checks.

A sandbox that cannot be set up fails closed. Nothing here imports an engine, a worker or an effect.
"""
