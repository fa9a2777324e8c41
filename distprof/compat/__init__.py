"""Drop-ins: the public names of other profilers, on top of our record. One import changes, the script stays."""
