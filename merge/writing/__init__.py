"""Writes merges, here or to remote storage; the folder of a merge is complete or does not exist."""
