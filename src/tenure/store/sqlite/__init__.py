"""Jobs in one SQLite file: stdlib `sqlite3`, WAL, `synchronous=FULL`, group commit, one writer at a time.

`store` takes requests; `database` is what all stores of one process share for one file: the writer and the readers. One
module per verb (`enqueue`, `claim`, `settle`, `heartbeat`, …) says what happens inside a transaction; statements and
tables are in `sql/`.
"""
