"""`python -m package`, with imports relative to it (https://docs.python.org/3/library/__main__.html)."""
# command: -m trainer.main --steps 8
