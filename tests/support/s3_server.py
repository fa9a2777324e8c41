"""An S3 server in its own process, reachable only from this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from support.jobs import PATIENCE_S, clean_environ

SERVER = """
import sys
from werkzeug.serving import make_server, WSGIRequestHandler
from moto.server import DomainDispatcherApplication, create_backend_app
class Handler(WSGIRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_request(self, *_): pass
server = make_server('127.0.0.1', 0, DomainDispatcherApplication(create_backend_app), threaded=True,
                     request_handler=Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true"}


@dataclass(frozen=True)
class S3Server:
    """A running server."""

    address: str
    """URL like http://127.0.0.1:5000."""

    def environ(self, address: str | None = None) -> dict[str, str]:
        """Returns environment variables that make a client use this server, or a proxy at `address`."""
        return {**KEYS, "AWS_ENDPOINT_URL": address or self.address}

    def client(self) -> Any:
        """Returns a boto3 client, which distprof itself does not use."""
        return _client(self.address)

    def reset(self) -> None:
        """Removes all buckets."""
        urlopen(Request(f"{self.address}/moto-api/reset", method="POST"), timeout=PATIENCE_S).close()

    def bucket(self, name: str) -> str:
        """Creates a bucket and returns its URL."""
        self.client().create_bucket(Bucket=name)
        return f"s3://{name}"

    def put(self, folder: Path, url: str) -> str:
        """Uploads a folder or a file and returns its URL."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        for file in [folder] if folder.is_file() else sorted(folder.rglob("*")):
            if file.is_file():
                key = prefix if file == folder else f"{prefix}/{file.relative_to(folder).as_posix()}"
                self.client().put_object(Bucket=bucket, Key=key, Body=file.read_bytes())
        return url

    def objects(self, url: str) -> dict[str, int]:
        """Returns key relative to a URL -> size in bytes."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return {one["Key"].removeprefix(prefix).removeprefix("/"): one["Size"]
                for page in pages for one in page.get("Contents", [])}


@cache
def _client(address: str) -> Any:
    import boto3

    return boto3.client("s3", endpoint_url=address, aws_access_key_id="testing", aws_secret_access_key="testing",
                        region_name="us-east-1")


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Starts a server that ends after the block."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True,
                          env=clean_environ()) as process:
        try:
            assert process.stdout is not None
            address = f"http://127.0.0.1:{int(process.stdout.readline())}"
            _wait_for(address)
            yield S3Server(address)
        finally:
            process.kill()


def _wait_for(address: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            urlopen(f"{address}/moto-api/", timeout=10).close()
            return
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)


def use(monkeypatch: pytest.MonkeyPatch, server: S3Server, address: str | None = None) -> None:
    """Makes this process use a server."""
    from distprof.storage.kinds.schemes import forget_clients
    from distprof.storage.listing import LISTINGS

    forget_clients()
    LISTINGS.forget_all()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environ(address).items():
        monkeypatch.setenv(name, value)
