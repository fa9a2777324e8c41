"""The job of `distprof demo`, in which one rank is late. In its ranks, this folder is first on sys.path."""
