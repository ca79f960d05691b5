"""`tenure demo`: workers are killed and frozen on a real database, and the database is asked what came of it."""
