"""Starts ranks and holds the command line: arguments come in, processes and commands go out."""
