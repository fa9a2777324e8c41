"""The `distprof` command line, and the processes that `distprof run` starts."""
