"""Reads and joins the summaries that ranks left, and makes frames from them in place of tables."""
