"""What a job is: states and moves, outcomes, policies, ids and time.

Pure data and pure functions. No I/O, no SQL, no asyncio, and never the current time.
"""
