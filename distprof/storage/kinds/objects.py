"""Google Cloud Storage and Azure: an object is there whole with the request that writes it, and needs no folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distprof.storage.backend import Backend


class Objects(Backend):
    """Buckets or containers of an account."""

    def _found(self, root: str) -> Mapping[str, Any]:
        """adlfs gives a list of names, and no details, where the object itself is asked for."""
        found = super()._found(root)
        return found if isinstance(found, Mapping) else {name: self.filesystem.info(name) for name in found}

    def _put(self, key: str, content: bytes, *, only_new: bool) -> bool:
        """The storage itself sees to it that two do not write a new object; some that speak its language do not."""
        options: dict[str, Any] = {"mode": "create"} if only_new else {}
        if only_new and self.filesystem.exists(key):
            return False
        try:
            self.filesystem.pipe_file(key, content, **options)
        except FileExistsError:
            if not only_new:
                raise
            return False
        return True

    def _make_folder_of(self, key: str) -> None:
        """Nothing: it would ask for the right to make buckets."""
