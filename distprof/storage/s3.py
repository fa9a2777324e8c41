"""S3 and what speaks its protocol: each request names the etag that was listed, so that one object is read as one."""

from __future__ import annotations

from typing import Any

from distprof.storage.backend import Backend, Entry


class S3(Backend):
    """Buckets."""

    def __init__(self, scheme: str, filesystem: Any) -> None:
        super().__init__(scheme, filesystem)
        filesystem.retries = 1  # see OPTIONS

    def check(self, url: str, entry: Entry) -> None:
        """Nothing: each read has asked for the etag."""

    def _get(self, key: str, start: int, end: int, entry: Entry) -> Any:
        from fsspec.asyn import sync

        return sync(self.filesystem.loop, self._read, key, start, end, entry.tag)

    async def _read(self, key: str, start: int, end: int, tag: str) -> bytes:
        bucket, name, _ = self.filesystem.split_path(key)
        same = {"IfMatch": tag} if tag else {}
        response = await self.filesystem._call_s3(
            "get_object", Bucket=bucket, Key=name, Range=f"bytes={start}-{end - 1}", **same)
        body = response["Body"]
        try:
            content: bytes = await body.read()
        finally:
            body.close()
        return content
