"""Prints how it was started; needs neither torch nor a process group."""

import json
import os
import sys


def annotated(x: int) -> None:
    """Annotations are values here: this script asked for no other way."""


print(json.dumps({"argv": sys.argv, "name": __name__, "path0": sys.path[0], "file": __file__,
                  "rank": os.environ.get("RANK"), "world": os.environ.get("WORLD_SIZE"),
                  "annotation": str(annotated.__annotations__["x"]),
                  "main": sys.modules["__main__"].__dict__ is globals()}))
