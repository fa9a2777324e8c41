"""Communication of a rank: which calls it made, when the backend worked on them, where the script waited."""
