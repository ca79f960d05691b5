"""The benchmark house: Tenure, its peers and the bare engines, measured in turns by `python -m benchmarks`.

Nothing here is imported by Tenure. Every contender runs in a process of its own and speaks `protocol`.
"""
