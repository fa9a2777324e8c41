"""A server of S3 for uploads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.s3_server import S3Server, s3_server, use


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as started:
        yield started


@pytest.fixture
def bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty bucket that this process reaches."""
    use(monkeypatch, server)
    server.reset()
    return server.bucket("jobs")
