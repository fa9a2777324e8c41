"""The run directory, format 1: names, tables, columns and typed files that recording and merging share."""
