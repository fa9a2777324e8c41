"""`sys.exit` in a thread, in a hook of a tensor, in a signal handler, and in a finally (https://github.com/wandb/wandb/pull/1304)."""
# ends: 9
# recorded: partial
# telling
import os
import signal
import sys
import threading

from small import digest, loss_of, net, sgd, step

model = net()
optimizer = sgd(model)
step(model, optimizer, 0)
thread = threading.Thread(target=sys.exit, args=(1,))
thread.start()
thread.join()
step(model, optimizer, 1)
loss = loss_of(model, 2)
handle = model[0].weight.register_hook(lambda gradient: sys.exit(5))
try:
    loss.backward()
except SystemExit as ended:
    print("hook", ended.code)
handle.remove()
step(model, optimizer, 2)
signal.signal(signal.SIGUSR1, lambda *_: sys.exit("from a handler"))
try:
    os.kill(os.getpid(), signal.SIGUSR1)
    print("not reached")
except SystemExit as ended:
    print("handler", ended.code)
try:
    raise ValueError("lost")
finally:
    print(digest(model))
    sys.exit(9)
