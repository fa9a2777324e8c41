"""One-line support for frameworks: one module for each, imported only by its users."""
