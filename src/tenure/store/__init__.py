"""Where jobs live and where the rules bind: one contract, one folder per engine.

`contract` says what every store promises; `sqlite` and `postgres` keep it. A store knows rows, never functions.
"""
