"""Summaries of ranks: made from the tables of a rank folder, kept in a file a host."""
