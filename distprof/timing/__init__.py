"""Timing steps and calls: marks of modules and autograd nodes come in, time by module goes out."""
