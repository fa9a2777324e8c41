"""Reading, selecting and printing for `profile_analyze`."""
