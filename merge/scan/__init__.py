"""Reads trace files: archives, gzip, and Chrome events as columns, damaged ones too."""
