"""The merged Chrome trace and the table of its events."""
