"""Prints the seconds that polars needs to load a Parquet file, as JSON: python parquet_load.py FILE"""

from __future__ import annotations

import json
import sys
import time

import polars as pl


def main(path: str) -> None:
    """Loads all columns and rows; measures without the import."""
    begin = time.perf_counter()
    rows = pl.read_parquet(path).height
    print(json.dumps({"load_s": time.perf_counter() - begin, "rows": rows}))


if __name__ == "__main__":
    main(*sys.argv[1:])
