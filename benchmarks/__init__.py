"""Tenure beside other job queues, on one machine: `python -m benchmarks`. Results: docs/benchmarks.md."""
