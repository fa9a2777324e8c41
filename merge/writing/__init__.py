"""Writes merges: the files, in a folder that is whole or not there, here or elsewhere."""
