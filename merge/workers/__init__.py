"""Where the work of a merge runs: in threads, in processes on this machine, or on a dask cluster."""
