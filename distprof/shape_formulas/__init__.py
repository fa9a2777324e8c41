"""The cost of operators from their names and the shapes of their tensors. Does not import torch."""
