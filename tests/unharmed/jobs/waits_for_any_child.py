"""`os.wait()` and process groups: no child is there but its own (https://github.com/ray-project/ray/issues/23566)."""
import os

from small import digest, net, sgd, step


def no_child():
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True


model = net()
optimizer = sgd(model)
for number in range(9):
    step(model, optimizer, number)
    print(number, no_child())
    if number in (1, 4, 8):
        child = os.fork()
        if not child:
            os._exit(number)
        got, status = os.wait()
        print(got == child, os.waitstatus_to_exitcode(status))
print(digest(model))
