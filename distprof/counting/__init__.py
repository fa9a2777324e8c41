"""Counting a call: operators and torch functions that run come in, what they cost by module goes out."""
