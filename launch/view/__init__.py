"""What `distprof view` does: the merged trace of a run in Perfetto, in a browser."""
