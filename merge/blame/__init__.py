"""Which rank made the others wait, with what, and how sure that is."""
