"""One file per subcommand: `commands/NAME.py` defines the click command `NAME` and implements it.

`distprof --help` imports every file here, so each imports what it needs inside its functions.
"""
