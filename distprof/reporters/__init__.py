"""Tables, trees, JSON, data frames and files made of counted and recorded numbers. Imports no torch."""
