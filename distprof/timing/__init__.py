"""How long steps and calls take, by module."""
