"""Brings run directories to where they are kept: while they are recorded, or afterwards."""
