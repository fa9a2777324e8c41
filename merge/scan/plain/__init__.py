"""The merge engine in Python, for machines without a C compiler: the same results, about a hundred times slower."""

from distprof.merge.scan.plain.scanner import PlainScanner as new_scanner
from distprof.merge.scan.plain.slices import PlainLanes as new_lanes

__all__ = ["new_lanes", "new_scanner"]
