"""The job of `distprof demo`, in which one rank is late. Ranks have this folder first on sys.path."""
