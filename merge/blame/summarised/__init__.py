"""Ranks that delay a job of thousands, found in the summaries of all of them."""
