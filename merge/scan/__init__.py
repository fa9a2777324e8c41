"""Reads trace files, also damaged ones: archives, gzip, and Chrome events as columns."""
