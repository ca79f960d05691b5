"""The peers' sides: one module each, run in the environment `.bench/`, over one shared harness.

`harness` knows the workloads, a side knows its library: how to prepare a store, enqueue, work and count.
"""
