"""MegEngine's profiler as a drop-in for programs of torch: the same names, arguments, files and tables.

    from distprof.compat.megengine import Profiler, profile

`python -m distprof.compat.megengine.profile_analyze` prints tables of operators, and
`python -m distprof.compat.megengine.profiler` profiles a script.
"""

from __future__ import annotations
