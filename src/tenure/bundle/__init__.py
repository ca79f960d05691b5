"""`tenure bundle`: one job with its whole history as a file, which is read without a database."""
