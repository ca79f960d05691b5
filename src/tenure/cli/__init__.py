"""The command line `tenure`: one file per noun, each a thin layer over `App`.

Data goes to stdout, everything else to stderr. Nothing heavy is imported before a command needs it.
"""
