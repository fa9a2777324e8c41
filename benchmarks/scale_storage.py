"""Measures merging of ranks that lie in object storage, beside copying them alone.

    python benchmarks/scale_storage.py [--ranks 64] [--megabytes 8] [--repeat 3] [--bucket NAME] [--record]

Traces are made up (scaled_traces.py) and uploaded with boto3. Then, in turns: boto3 downloads all of them, a merge
reads them where they are and writes here, and a merge reads the downloaded ones. Without `--bucket` the storage is a
server of moto on this machine, which takes part of the processors; with it, that of AWS_ENDPOINT_URL, and the objects
are removed afterwards.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import merge_text as text
from processes import Cost, timed
from scale import merge, record, same
from scaled_traces import write_ranks

PREFIX = "distprof-benchmark"
HEADING = "## scale_storage.py"
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
def server() -> Iterator[None]:
    """One of moto, for the environment of this process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY="testing", AWS_DEFAULT_REGION="us-east-1",
                      AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}")
    process = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                urlopen(f"{os.environ['AWS_ENDPOINT_URL']}/moto-api/", timeout=10).close()
                break
            except OSError:
                time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


def measure(bucket: str, args: argparse.Namespace, folder: Path) -> list[str]:
    """Copies and merges, in turns."""
    import boto3

    client: Any = boto3.client("s3")
    num_bytes = args.ranks * write_ranks(folder / "ranks", args.ranks, args.megabytes)
    files = sorted((folder / "ranks").iterdir())
    for file in files:
        client.upload_file(str(file), bucket, f"{PREFIX}/{file.name}")
    best = dict[str, Cost]()
    try:
        for _ in range(args.repeat):
            for name, cost in _turn(bucket, folder):
                best[name] = min(best.get(name, cost), cost, key=lambda one: one.wall_s)
    finally:
        for file in files:
            client.delete_object(Bucket=bucket, Key=f"{PREFIX}/{file.name}")
    if not same(folder / "from storage", folder / "from files"):
        sys.exit("other bytes from storage than from files")
    copying = best["copying (boto3)"].wall_s
    size = sum(file.stat().st_size for file in files)
    return [f"{args.ranks} ranks, {num_bytes / 1e6:.0f} MB of text, {size / 1e6:.0f} MB in storage:",
            text.table(("program", "wall s", "CPU s", "others", "/ copying", "peak MB"), [
                [name, text.number(cost.wall_s, 1), text.number(cost.cpu_s, 1), text.number(cost.others_cores, 2),
                 text.number(cost.wall_s / copying, 2), text.megabytes(cost.max_rss_bytes)]
                for name, cost in best.items()])]


def _turn(bucket: str, folder: Path) -> Iterator[tuple[str, Cost]]:
    copied = folder / PREFIX  # a run is called by its folder
    shutil.rmtree(copied, ignore_errors=True)
    copied.mkdir()
    yield "copying (boto3)", timed([sys.executable, "-c", COPY, bucket, PREFIX, str(copied)])
    shutil.rmtree(folder / "from storage", ignore_errors=True)
    yield "merging from storage", timed([sys.executable, "-m", "distprof", "merge", f"s3://{bucket}/{PREFIX}", "--out",
                                         str(folder / "from storage")])
    yield "merging what was copied", merge(copied, folder / "from files")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64, help="how many (default: %(default)s)")
    parser.add_argument("--megabytes", type=float, default=8, help="of text of each (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="turns; the fastest of each counts")
    parser.add_argument("--bucket", help="one that is there; without it a server is started")
    parser.add_argument("--in", dest="folder", type=Path, help="where files are for the while: a disk with room")
    parser.add_argument("--record", action="store_true", help="put the table into RESULTS.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        if args.bucket is not None:
            found = measure(args.bucket, args, Path(name))
        else:
            with server():
                import boto3

                boto3.client("s3").create_bucket(Bucket=PREFIX)
                found = measure(PREFIX, args, Path(name))
    section = "\n\n".join([text.machine(), *found])
    print(section)
    if args.record:
        record(section, HEADING)


if __name__ == "__main__":
    main()
