"""Summaries that ranks left: read, joined, and what is made of them in place of tables."""
