"""The report of a run: one JSON document with all that commands print of it, and the page that draws it."""
