"""Merges traces of ranks by TraceFuse of TraceLens.

    python tracelens_fuse.py OUTPUT TRACE...
"""

from __future__ import annotations

import sys

from TraceLens import TraceFuse


def main(output: str, *traces: str) -> None:
    """Merges in the order given, Python frames included as everyone else has them; writes OUTPUT.gz."""
    TraceFuse(list(traces)).merge_and_save(output, include_pyfunc=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
