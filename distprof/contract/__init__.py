"""The run directory, format 2: what recording and merging share (names, tables, columns, types of files)."""
