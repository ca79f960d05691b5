"""What every front door can do with jobs, each act written once and spoken twice: for sync and for async callers.

An act is a conversation with a store. `App` is the door that people hold; HTTP, MCP and the command line call it.
"""
