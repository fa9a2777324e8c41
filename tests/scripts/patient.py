"""Runs another script with a handler of SIGTERM that goes on: `patient.py SCRIPT ARGUMENTS`."""

import runpy
import signal
import sys

signal.signal(signal.SIGTERM, lambda *_: None)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
