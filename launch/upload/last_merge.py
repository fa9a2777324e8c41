"""A run that several hosts upload is merged there by the launcher that ends last: it finds the ranks of all."""

from __future__ import annotations

import re
from contextlib import suppress

import msgspec

from distprof.contract.paths import RANK_JSON
from distprof.contract.rank_json import RankJson
from distprof.errors import DistprofError
from distprof.recording.run_directory import MERGING
from distprof.storage.kinds.schemes import backend_of
from distprof.storage.listing import LISTINGS
from distprof.storage.remote_path import RemotePath

_RANK_JSON = re.compile(rf"rank\d{{5,}}/{re.escape(RANK_JSON)}")


def claimed(target: RemotePath) -> bool:
    """Whether this launcher is the one that merges: all ranks are there, and no other launcher said so before.

    Each asks once its own ranks are there; then the last one finds all of them.

    Args:
        target: Of the run.

    Raises:
        DistprofError, OSError: It cannot be read there.
    """
    LISTINGS.forget(target.url)
    found = sorted(name for name in LISTINGS.of(target.url)[0].entries if _RANK_JSON.fullmatch(name))
    if not found:
        return False
    backend, url = backend_of(target.url), f"{target.url}/{found[0]}"
    about = msgspec.json.decode(backend.whole(url, backend.info(url)), type=RankJson)
    return len(found) >= about.world_size and backend.put(f"{target.url}/{MERGING}", b"merging", only_new=True)


def unclaimed(target: RemotePath) -> None:
    """Lets another launcher, or a person, merge after all."""
    with suppress(DistprofError, OSError):
        backend_of(target.url).remove([f"{target.url}/{MERGING}"])

