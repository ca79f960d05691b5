"""`tenure bench`: measures the user's own database and leaves nothing behind."""
