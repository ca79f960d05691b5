"""The client: the operations that `App` and its async view `App.aio` share, each written once.

`operations` runs an operation for a sync or an async caller; `state` is the part that both views share.
"""
