"""Runs of many ranks by their summaries: arrivals of all ranks joined, meetings measured, ranks that matter."""
