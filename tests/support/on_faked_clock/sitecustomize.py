"""For processes under libfaketime 0.9.10, whose clock_nanosleep fails on a clock that is not faked."""

import select
import time

from distprof import own  # its clock is a module of its own

for module in (time, own.time):
    module.sleep = lambda seconds: select.select([], [], [], seconds) and None
