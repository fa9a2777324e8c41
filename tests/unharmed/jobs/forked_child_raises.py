"""A forked child that fails with an exception, and one that leaves by `sys.exit` (https://github.com/python/cpython/issues/87079)."""
import os
import sys

from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
for number in range(8):
    step(model, optimizer, number)
    sys.stdout.flush()
    if number in (2, 6):
        child = os.fork()
        if not child:
            print("child", number, digest(model))
            if number == 2:
                raise ValueError("in the child")
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(digest(model))
