"""Everything that is printed of a run."""
