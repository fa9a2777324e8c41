"""What operators cost, by their names and the shapes of their tensors. Imports no torch."""
