"""The PostgreSQL engine: tables and functions in `sql/`, one JSON value each way, many machines.

The rules are in the functions; Python only carries requests to them and errors back.
"""
