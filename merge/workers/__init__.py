"""Where the work of a merge is done: threads, processes of this machine, or a cluster of dask."""
