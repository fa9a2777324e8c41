"""What a file is that is no JSON, by how it begins."""

from __future__ import annotations

SNIFFED_BYTES = 1 << 12
"""So much of a file shows what it is."""
FOREIGN = (
    (b"<!doctype", "an HTML page", "was it saved from a login page? download the file itself"),
    (b"<html", "an HTML page", "was it saved from a login page? download the file itself"),
    (b"<?xml", "XML", None),
    (b"version https://git-lfs", "a Git LFS pointer", "fetch the file with git lfs pull"),
    (b"/annex/objects/", "a git-annex pointer", "fetch the file with git annex get"),
    (b"par1", "a parquet table", None),
    (b"sqlite format 3", "an SQLite database", "exports of Nsight Systems are read from files of this machine alone"),
    (b"pk\x03\x04", "a ZIP archive", "unzip it"),
    *((b"\x80" + protocol, "a Python pickle", "for torch.cuda.memory snapshots, use distprof memory")
      for protocol in (b"\x02", b"\x03", b"\x04", b"\x05")),
    (b"\n", "binary data, a Perfetto protobuf trace perhaps", "only Chrome traces (JSON) can be merged"),
)
"""First bytes in small letters -> what begins so, and a hint."""


def looks_like(first: bytes) -> tuple[str, str | None]:
    """What a file that begins with `first` is, and a hint; for what is no JSON."""
    for prefix, what, hint in FOREIGN:
        if first[:SNIFFED_BYTES].lower().lstrip(b"" if prefix == b"\n" else b" \t\r\n").startswith(prefix):
            return what, hint
    start = first[:SNIFFED_BYTES].lstrip()[:24]
    if b"\0" in start or sum(byte > 126 for byte in start) > len(start) // 3:
        return "binary data", None
    return f"text that is not JSON: {start.decode(errors='replace').splitlines()[0]!r}", None
