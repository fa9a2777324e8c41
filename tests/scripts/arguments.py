"""Prints how it was started; needs no process group."""

import json
import os
import sys

import torch

print(json.dumps({"argv": sys.argv, "name": __name__, "path0": sys.path[0], "file": __file__,
                  "rank": os.environ.get("RANK"), "world": os.environ.get("WORLD_SIZE"),
                  "torch": torch.__version__, "main": sys.modules["__main__"].__dict__ is globals()}))
