"""Output: module trees, terminal pages, and counts as JSON, data frames and Parquet. Does not import torch."""
