"""Flow: what stands on top of single jobs. Workflows here; durable steps and memory beside them.

Knows the model, handlers and the store's contract; neither engines nor workers.
"""
