"""`python -m tenure`: the command line, as `tenure` is."""

import sys

if not sys.flags.safe_path:
    # Python puts the current folder first for `-m`; a json.py there must not be imported in place of the library's.
    del sys.path[0]

from tenure.cli.main import main

main()
