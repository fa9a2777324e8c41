"""`python -m distprof` is `distprof`."""

from distprof.launch.cli import main

main()
