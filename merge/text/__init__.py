"""Text and JSON that commands print about a run."""
