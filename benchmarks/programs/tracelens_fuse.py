"""Merges traces of ranks with TraceFuse of TraceLens.

    python tracelens_fuse.py OUTPUT TRACE...
"""

from __future__ import annotations

import sys

from TraceLens import TraceFuse


def main(output: str, *traces: str) -> None:
    """Merges in the given order, with Python frames, as all other contenders do; writes OUTPUT.gz."""
    TraceFuse(list(traces)).merge_and_save(output, include_pyfunc=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
