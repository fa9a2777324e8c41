"""The formats that execution traces are exported in."""
