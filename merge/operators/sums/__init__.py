"""Rows of operators, added up: of a rank where it is read, and of ranks as they come."""
