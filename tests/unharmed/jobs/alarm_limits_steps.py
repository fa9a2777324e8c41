"""A limit of time for each step, by SIGALRM (https://github.com/AntoineCezar/timeoutcontext/pull/9)."""
import signal
import time

from small import digest, net, sgd, step


def late(number, frame):
    raise TimeoutError("step")


signal.signal(signal.SIGALRM, late)
model = net()
optimizer = sgd(model)
for number in range(9):
    signal.setitimer(signal.ITIMER_REAL, 0.05 if number in (2, 4, 7) else 30)
    try:
        if number in (2, 4, 7):
            time.sleep(20)
        step(model, optimizer, number)
    except TimeoutError as error:
        print(number, "late", error)
        step(model, optimizer, number)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
signal.alarm(30)
print("left", signal.alarm(0) > 20, digest(model))
