"""Trace files read as bytes: archives, gzip, Chrome events as columns, repaired where they are damaged."""
