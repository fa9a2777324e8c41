"""Lets `import torchvision`, which transformers and Lightning do, load beside a CPU build of torch.

The wheel that the tests have is one for CUDA, which cannot load its operators there; no test calls them. Import this
first.
"""

import importlib.util
import re
from pathlib import Path

import torch

LIBRARIES: list[torch.library.Library] = []
"""What is defined here lives as long as these."""


def define() -> bool:
    """Defines the operators that are missing, without kernels; False where torchvision is not installed."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    source = (Path(spec.origin).parent / "_meta_registrations.py").read_text()
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in sorted(set(re.findall(r'register_(?:meta|fake)\("(?:torchvision::)?(\w+)"', source))):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}() -> ()")
    LIBRARIES.append(library)
    return True


define()
