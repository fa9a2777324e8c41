"""Counting: FLOPs, MACs, bytes and parameters of a model call or of the steps of a job."""

import torch  # noqa: F401 (whole, before ours: under `distprof run` its import starts the recorder, which imports these)
