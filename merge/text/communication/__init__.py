"""Shows communication, and what delays it, in words, tables and rows of characters."""
