"""Looking at a queue: why a job waits, how it goes, what is wrong, what happens now.

Reads through the store's contract and changes nothing. Answers are records; drawing them is for the doors.
"""
