"""Measures the cost of merging a run in a bucket: merging through S3, merging a local copy, and copying alone.

    python benchmarks/storage.py [--ranks 64] [--megabytes 8] [--latency-ms 0] [--bucket NAME] [--repeat 3]

Traces are made up (made_up/traces.py) and uploaded. The storage is a moto server in another process on this machine,
which uses some of the processors; with `--bucket`, it is the one at AWS_ENDPOINT_URL, and the uploaded objects are
removed afterwards. The lower limit is copying alone, by boto3 with 8 threads. `--latency-ms` delays each request, as a
network does.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from made_up.traces import same, write_ranks
from measuring.benchmark import DISTPROF, Found, Option, files, run
from measuring.processes import Failed
from measuring.tables import number, table
from measuring.turns import COSTS, cells, empty, in_turns

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.faulty_proxy import faulty_proxy, waits
from support.s3_server import s3_server

NAME = "distprof-benchmark"
COPYING = "copying (boto3, 8 threads)"
COPY = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3

bucket, prefix, folder = sys.argv[1:]
client = boto3.client("s3")
pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
keys = [one["Key"] for page in pages for one in page["Contents"]]
with ThreadPoolExecutor(8) as executor:
    list(executor.map(lambda key: client.download_file(bucket, key, str(Path(folder, Path(key).name))), keys))
"""


@contextmanager
def storage(bucket: str, latency_ms: float) -> Iterator[str]:
    """Yields the name of a bucket that the environment variables of this process give access to."""
    if bucket:
        yield bucket
        return
    with s3_server() as server, faulty_proxy(server.address) as proxy:
        proxy.add(waits(latency_ms / 1000))
        before = dict(os.environ)
        os.environ.update(server.environ(proxy.address if latency_ms else server.address))
        server.bucket(NAME)
        try:
            yield NAME
        finally:
            os.environ.clear()
            os.environ.update(before)


def measure(args: argparse.Namespace) -> Found:
    """Returns a table with a row per program."""
    import boto3

    with files(args) as folder, storage(args.bucket, args.latency_ms) as bucket:
        client: Any = boto3.client("s3")
        num_bytes = args.ranks * write_ranks(folder / "ranks", args.ranks, args.megabytes)
        traces = sorted((folder / "ranks").iterdir())
        for file in traces:
            client.upload_file(str(file), bucket, f"{NAME}/{file.name}")
        try:
            rows = _rows(bucket, folder, args.repeat)
        finally:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=NAME)
            for one in (one for page in pages for one in page.get("Contents", [])):
                client.delete_object(Bucket=bucket, Key=one["Key"])
        size = sum(file.stat().st_size for file in traces)
    said = f"{args.ranks} ranks, {num_bytes / 1e6:.0f} MB of text, {size / 1e6:.0f} MB in storage:"
    return Found(text=[said, table(("program", *COSTS, "wall / copying"), rows)])


def _rows(bucket: str, folder: Path, repeat: int) -> list[list[str]]:
    copied = folder / NAME  # the name of the folder becomes that of the run
    empty(copied)
    merge, url = [*DISTPROF, "merge", "--force"], f"s3://{bucket}/{NAME}"
    found = in_turns({
        COPYING: [sys.executable, "-c", COPY, bucket, f"{NAME}/", str(copied)],
        "merging from storage": [*merge, url, "--out", str(folder / "from storage")],
        "merging from storage to storage": [*merge, url, "--out", f"{url}-merged"],
        "merging what was copied": [*merge, str(copied), "--out", str(folder / "from files")]}, repeat)
    if not same(folder / "from storage", folder / "from files"):
        raise Failed("other bytes from storage than from files")
    shutil.rmtree(copied)
    copying = min(cost.wall_s for cost in found[COPYING])
    return [[name, *cells(costs), number(min(cost.wall_s for cost in costs) / copying, 1)]
            for name, costs in found.items()]


if __name__ == "__main__":
    run(measure, __doc__,
        ranks=Option(default=64, smallest=2, help="how many (default: %(default)s)"),
        megabytes=Option(default=8.0, smallest=0.2, help="of text of each (default: %(default)s)"),
        latency_ms=Option(default=0.0, smallest=1.0, help="of each request (default: %(default)s)"),
        bucket=Option(default="", smallest="", help="one that is there; without it a server is started"),
        repeat=Option(default=3, smallest=1, help="runs of each (default: %(default)s)"))
