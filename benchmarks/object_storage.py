"""Measures what it costs that a run lies in a bucket: merged through S3, merged here, and copied alone.

    python benchmarks/object_storage.py [--ranks 4] [--megabytes 120] [--latency-ms 0] [--repeat 3]

The server of S3 is moto, in a process of its own on this machine. It is no fast one: what copying alone takes, by boto3
with its own transfers side by side, is the limit. A merge reads each trace twice. `--latency-ms` delays each request,
as a network does. The traces are of the same job as those of merge.py, gzipped, as run directories have them.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from processes import timed

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.faulty_proxy import faulty_proxy, waits
from support.s3_server import S3Server, s3_server

HERE = Path(__file__).parent
RECORDED = 4
COPY = """
import sys
from pathlib import Path
import boto3
client, out = boto3.client("s3"), Path(sys.argv[1])
for one in client.list_objects_v2(Bucket="jobs")["Contents"]:
    client.download_file("jobs", one["Key"], str(out / Path(one["Key"]).name))
"""


def folder_of(data: Path, ranks: int, megabytes: float) -> Path:
    """Gzipped traces of so many ranks; beyond those that were recorded they are the same again."""
    folder = data / f"gzipped-{ranks}x{megabytes:g}MB"
    if not folder.exists():
        plain, unfinished = folder.with_suffix(".plain"), folder.with_suffix(".partial")
        for made in (plain, unfinished):
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir(parents=True)
        timed([sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RECORDED}",
               str(HERE / "traced_job.py"), "--out", str(plain), "--megabytes", f"{megabytes:g}"])
        for rank in range(ranks):
            packed = gzip.compress((plain / f"rank{rank % RECORDED}_trace.json").read_bytes(), 1)
            (unfinished / f"rank{rank}_trace.json.gz").write_bytes(packed)
        shutil.rmtree(plain)
        unfinished.rename(folder)
    return folder


def measure(server: S3Server, address: str, folder: Path, out: Path, repeat: int) -> None:
    """Prints a line for each contender: the fastest of its runs, in turns."""
    os.environ.update(server.environ(address))
    merge = [sys.executable, "-m", "distprof", "merge"]
    naming = ["--rank-pattern", r"rank(\d+)_", "--out", str(out / "merged")]
    contenders: dict[str, Callable[[], list[str]]] = {
        "merge of the folder here": lambda: [*merge, str(folder), *naming],
        "merge of s3://, to here": lambda: [*merge, "s3://jobs/run", *naming],
        "merge of s3://, to s3://": lambda: [*merge, "s3://jobs/run", *naming[:2], "--out", "s3://jobs-out/merged",
                                             "--force"],
        "copying s3:// to here, boto3": lambda: [sys.executable, "-c", COPY, str(out)],
    }
    fastest = dict.fromkeys(contenders, float("inf"))
    for _ in range(repeat):
        for name, command in contenders.items():
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir(parents=True)
            began = time.monotonic()
            timed(command())
            fastest[name] = min(fastest[name], time.monotonic() - began)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{size / 1e6:.0f} MB of gzipped traces, the fastest of {repeat}:")
    for name, seconds in fastest.items():
        print(f"  {name:<30}{seconds:8.2f} s{size / seconds / 1e6:10.1f} MB/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--megabytes", type=float, default=120)
    parser.add_argument("--latency-ms", type=float, default=0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--data", type=Path, default=HERE.parent / "build" / "benchmarks")
    args = parser.parse_args()
    folder = folder_of(args.data, args.ranks, args.megabytes)
    with s3_server() as server:
        server.bucket("jobs-out")
        server.put(folder, f"{server.bucket('jobs')}/run")
        if not args.latency_ms:
            measure(server, server.address, folder, args.data / "output", args.repeat)
            return
        with faulty_proxy(server.address) as proxy:
            proxy.add(waits(args.latency_ms / 1000))
            measure(server, proxy.address, folder, args.data / "output", args.repeat)


if __name__ == "__main__":
    main()
