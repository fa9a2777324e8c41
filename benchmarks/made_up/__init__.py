"""Runs and traces that no job recorded, as large as a benchmark or a test asks for."""
