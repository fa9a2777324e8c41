"""A small job with a late rank, and what `distprof demo` shows of it. Ranks have this folder first on sys.path."""
