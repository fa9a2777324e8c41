"""Reduces the numbers of all ranks to totals per GPU and of the model."""
