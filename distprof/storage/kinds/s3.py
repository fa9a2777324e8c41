"""S3 and storages with its protocol: each request names the listed etag, so that all reads are of the same object.

A bucket is listed in one request if that is enough, otherwise folder by folder, in parallel.
"""

from __future__ import annotations

import errno
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from distprof.storage.backend import Backend, Entry
from distprof.storage.faults import RemoteError
from distprof.storage.retrying import Tally, awaited, persistently
from distprof.storage.stream import requests
from distprof.storage.writing import writable

Page = Mapping[str, Any]
Ask = Callable[..., Page]
"""Makes one request of `list_objects_v2` with the given options."""
SIDE_BY_SIDE = 64
"""Maximum number of groups of folders listed in parallel; S3 returns 1,000 objects per request, one after the other."""


def listed(ask: Ask, prefix: str, tally: Tally) -> Iterator[Mapping[str, Any]]:
    """Yields all objects whose keys begin with a prefix.

    Args:
        ask: Makes the requests.
        prefix: Ends with a slash, or is empty.
        tally: Counts the results.
    """
    first = ask(Prefix=prefix)
    if not first.get("IsTruncated"):
        yield from first.get("Contents", ())
        return
    folders = list[str]()
    for page in _pages(ask, tally, Prefix=prefix, Delimiter="/"):
        yield from page.get("Contents", ())
        folders += [one["Prefix"] for one in page.get("CommonPrefixes", ()) if one.get("Prefix")]
    for objects in requests().map(lambda group: _all(ask, tally, group), _groups(folders, len(prefix))):
        yield from objects


def _pages(ask: Ask, tally: Tally, **options: str) -> Iterator[Page]:
    """Yields pages up to the last one.

    Raises:
        RemoteError: A page is followed by itself, or by nothing.
    """
    page, token = ask(**options), ""
    while True:
        tally.took(objects=len(page.get("Contents", ())), folders=1 + len(page.get("CommonPrefixes", ())))
        yield page
        before, token = token, page.get("NextContinuationToken", "")
        if not page.get("IsTruncated"):
            return
        if token in ("", before):
            raise tally.endless()
        page = ask(**options, ContinuationToken=token)


def _all(ask: Ask, tally: Tally, prefix: str) -> list[Mapping[str, Any]]:
    return [one for page in _pages(ask, tally, Prefix=prefix) for one in page.get("Contents", ())]


def _groups(folders: list[str], common: int) -> list[str]:
    """Returns prefixes that cover each folder once: as long as possible, but at most about `SIDE_BY_SIDE` of them.

    There are more if the names begin with more different characters. One prefix for all would be listed serially, and
    of however many there are, the executor lists only some at the same time.
    """
    longest = max(map(len, folders), default=common)
    best = [folder[:common + 1] for folder in folders]
    for length in range(common + 2, longest + 1):
        cut = [folder[:length] for folder in folders]
        if len(set(cut)) > SIDE_BY_SIDE:
            break
        best = cut
    return list(_none_within_another(best))


def _none_within_another(prefixes: Iterable[str]) -> Iterator[str]:
    """Removes prefixes that begin with another one, which covers them."""
    last: str | None = None
    for prefix in sorted(prefixes):
        if last is None or not prefix.startswith(last):
            last = prefix
            yield prefix


MOST_ANSWER_BYTES = 64 << 20
"""Maximum size of an answer that is not an object; a page of a listing has 2 MB."""
PER_PART = 1 << 18
"""Bytes that a part counts for in the time limit for joining parts."""


class S3(Backend):
    """Buckets. Each write request carries a checksum, which botocore computes and S3 compares."""

    has_parts = True

    def __init__(self, scheme: str, filesystem: Any) -> None:
        super().__init__(scheme, filesystem)
        filesystem.retries = 1  # see OPTIONS
        filesystem.config_kwargs |= bounded_sessions()

    def holds(self, file: Path, entry: Entry) -> bool:
        """Compares the etag, which consists of MD5 sums unless the bucket encrypts with its own keys."""
        return entry.tag.strip('"') == etag_of(file)

    def entries(self, url: str) -> dict[str, Entry]:
        """Uses fewer requests than `find`, and more in parallel."""
        key = self.key(url)
        _, name, _ = self.filesystem.split_path(key)
        prefix = f"{name}/" if name else ""
        found = {one["Key"]: {**one, "size": one.get("Size")} for one in listed(
            lambda **options: self._asked(url, "list_objects_v2", Key=None, **options), prefix, Tally(url))
            if "Key" in one}
        if not found and name:
            return self._alone(url)
        return dict(self._named(name, found))

    def _alone(self, url: str) -> dict[str, Entry]:
        """Returns the object at a URL; empty if there is none."""
        try:
            return {"": self.info(url)}
        except RemoteError as error:
            if error.errno == errno.ENOENT:
                return {}
            raise

    def check(self, url: str, entry: Entry) -> None:
        """Does nothing: each read has already requested the etag."""

    def _get(self, key: str, start: int, end: int, entry: Entry) -> Any:
        return self._done(self._read, key, start, end, entry.tag)

    async def _read(self, key: str, start: int, end: int, tag: str) -> bytes:
        same = {"IfMatch": tag} if tag else {}
        response = await self._call("get_object", key, Range=f"bytes={start}-{end - 1}", **same)
        body = response["Body"]
        try:
            if not response.get("ContentRange", f"bytes {start}-" if not start else "").startswith(f"bytes {start}-"):
                raise ConnectionError(f"the server sent a range other than bytes {start} to {end - 1}")
            content = bytearray()
            while piece := await body.read(end - start - len(content)):  # at most this many, however many there are
                content += piece
        finally:
            body.close()
        return bytes(content)

    def _put(self, key: str, content: bytes, *, only_new: bool) -> bool:
        try:
            self._done(self._call, "put_object", key, Body=content, **({"IfNoneMatch": "*"} if only_new else {}))
        except Exception as error:
            if only_new and _is_there(error):
                return False
            raise
        return True

    def _remove(self, key: str) -> None:
        self._done(self._call, "delete_object", key)

    def begin_parts(self, url: str) -> str:
        return str(self._asked(url, "create_multipart_upload")["UploadId"])

    def put_part(self, url: str, upload: str, number: int, content: bytes) -> str:
        return str(self._asked(url, "upload_part", UploadId=upload, PartNumber=number, Body=content)["ETag"])

    def complete_parts(self, url: str, upload: str, tags: Mapping[int, str]) -> None:
        parts = [{"PartNumber": number, "ETag": tags[number]} for number in sorted(tags)]
        self._asked(url, "complete_multipart_upload", UploadId=upload, MultipartUpload={"Parts": parts})

    def abort_parts(self, url: str, upload: str) -> None:
        self._asked(url, "abort_multipart_upload", UploadId=upload)

    def abort_left(self, url: str) -> int:
        left = self.uploads_left(url)
        for name, upload in left:
            bucket = self.key(url).partition("/")[0]
            self.abort_parts(f"{self.scheme}://{bucket}/{name}", upload)
        return len(left)

    def uploads_left(self, url: str) -> list[tuple[str, str]]:
        """Returns key in the bucket and id of uploads that were begun at or below a URL and are not complete."""
        _, name, _ = self.filesystem.split_path(self.key(url))
        found = self._asked(url, "list_multipart_uploads", Prefix=name, Key=None).get("Uploads", [])
        return [(one["Key"], one["UploadId"]) for one in found
                if one["Key"] == name or one["Key"].startswith(f"{name}/")]

    def _asked(self, url: str, method: str, **options: Any) -> Any:
        num_bytes = len(options.get("Body", b"")) + len(options.get("MultipartUpload", {}).get("Parts", ())) * PER_PART
        return persistently(url, lambda: self._done(self._call, method, self.key(url), **options), num_bytes=num_bytes)

    async def _call(self, method: str, key: str, **options: Any) -> Any:
        bucket, name, _ = self.filesystem.split_path(key)
        given = {"Bucket": bucket, "Key": name, **options}
        return await self.filesystem._call_s3(
            method, **{option: value for option, value in given.items() if value is not None})

    def _done(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return awaited(self.filesystem.loop, call, *arguments, **options)


def etag_of(file: Path) -> str:
    """Returns the etag that S3 gives to a file written by `put_file`."""
    size = file.stat().st_size
    sums = []
    with file.open("rb") as source:
        while content := source.read(writable.part_bytes(size)):
            sums.append(hashlib.md5(content, usedforsecurity=False))
    if size <= writable.PART_BYTES:
        return sums[0].hexdigest() if sums else hashlib.md5(b"", usedforsecurity=False).hexdigest()
    whole = hashlib.md5(b"".join(one.digest() for one in sums), usedforsecurity=False)
    return f"{whole.hexdigest()}-{len(sums)}"


def bounded_sessions() -> Mapping[str, Any]:
    """Makes botocore limit the size of answers that it reads; empty if this version cannot do that."""
    from aiobotocore.config import AioConfig
    from aiobotocore.httpsession import AIOHTTPSession
    from aiohttp import ClientResponse

    class Answer(ClientResponse):
        async def read(self) -> bytes:
            if self._body is None:
                self._body = await _read_whole(self)
            return self._body

    class Bounded(AIOHTTPSession):  # type: ignore[misc]
        async def _get_session(self, proxy_url: str | None) -> Any:
            session = await super()._get_session(proxy_url)
            session._response_class = Answer
            return session

    takes = "http_session_cls" in inspect.signature(AioConfig.__init__).parameters
    return {"http_session_cls": Bounded} if takes else {}


async def _read_whole(response: Any) -> bytes:
    content = bytearray()
    async for piece in response.content.iter_chunked(1 << 16):
        content += piece
        if len(content) > MOST_ANSWER_BYTES:
            response.close()
            raise OSError(f"its answer has more than {MOST_ANSWER_BYTES >> 20} MB")
    return bytes(content)


def _is_there(error: BaseException) -> bool:
    """True if an object was not written because it already exists."""
    from distprof.storage.faults import Kind, fault_of

    return isinstance(error, FileExistsError) or fault_of(error).kind is Kind.REPLACED
