"""The `distprof` program, also as `python -m distprof`."""

import sys


def main() -> None:
    """Runs the command line; Ctrl-C during imports ends it without a traceback."""
    try:
        from distprof.launch.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
