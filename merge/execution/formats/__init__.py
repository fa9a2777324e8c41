"""The formats in which execution traces are exported."""
