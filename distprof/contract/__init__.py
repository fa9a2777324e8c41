"""The run directory, format 1: what recording and merging share (names, tables, columns, types of files)."""
