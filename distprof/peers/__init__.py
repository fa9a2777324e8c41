"""The conventions of other counters, as views of our record."""
