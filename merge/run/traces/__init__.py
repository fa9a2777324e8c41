"""Finds traces of other programs, reads them as far as needed, and assigns them to ranks."""
