"""Notices that a rank is stuck and writes down what it was doing."""
