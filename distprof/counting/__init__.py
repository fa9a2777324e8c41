"""Counting: FLOPs, MACs, bytes and parameters of a model call or of the steps of a job."""

import torch  # noqa: F401 (first: under `distprof run`, importing torch starts the recorder, which imports our modules)
