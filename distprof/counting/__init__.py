"""Counting: FLOPs, MACs, bytes and parameters of a model call or of the steps of a job."""
