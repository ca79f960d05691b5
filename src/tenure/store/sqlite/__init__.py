"""Jobs in one SQLite file: stdlib `sqlite3`, WAL, `synchronous=FULL`, group commit, one writer at a time.

`store` is the door; `database` is what all stores of one process share for one file; the acts (`enqueue`, `claim`,
`settle`, `moves`, `prune`, `operating`, `reading`) say what happens inside a transaction; the rules are in `sql/`.
"""
