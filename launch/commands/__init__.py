"""One file per subcommand: `commands/NAME.py` defines the click command `NAME`.

`distprof --help` imports every file here, so each imports what it needs inside its function.
"""
