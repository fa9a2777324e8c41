"""Uploads run directories to object storage, while they are recorded or afterwards."""
