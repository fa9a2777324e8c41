"""Implements `distprof view`: shows the merged trace of a run in Perfetto, in a browser."""
