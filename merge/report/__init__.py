"""The report of a run: one JSON document with all that commands print about it, and the page that draws it."""
