"""The merge engine in C: reads and writes events without the interpreter's lock. What it has is in `scan/engine.py`."""

from distprof.merge.scan.compiled.scanner import CompiledScanner as new_scanner
from distprof.merge.scan.compiled.slices import CompiledLanes as new_lanes

__all__ = ["new_lanes", "new_scanner"]
