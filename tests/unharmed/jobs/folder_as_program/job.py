"""`python folder`: its `__main__.py` is run (https://docs.python.org/3/library/__main__.html#main-py-in-python-packages)."""
# command: program word
# real
