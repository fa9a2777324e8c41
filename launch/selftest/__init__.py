"""The jobs of `distprof selftest`, whose results are known, and the checks of what distprof finds."""
