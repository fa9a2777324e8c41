"""The working directory has modules named like those of Python; the script is elsewhere (https://github.com/pytorch/pytorch/issues/19943)."""
# command: code/train.py
# real
