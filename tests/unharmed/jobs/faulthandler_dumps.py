"""faulthandler: at a signal, and after a time, into a file (https://docs.python.org/3/library/faulthandler.html)."""
import faulthandler
import os
import signal
import time
from pathlib import Path

from small import digest, net, sgd, step

print(faulthandler.is_enabled())
dumps = open("dumps.tmp", "w+")
faulthandler.enable(dumps)
faulthandler.register(signal.SIGUSR1, dumps, all_threads=False, chain=False)
model = net()
optimizer = sgd(model)
for number in range(8):
    faulthandler.dump_traceback_later(20, file=dumps)
    step(model, optimizer, number)
    faulthandler.cancel_dump_traceback_later()
    if number == 4:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.05)
dumps.seek(0)
text = dumps.read()
print(text.count("most recent call first"), "Timeout" in text, digest(model))
faulthandler.disable()
Path("dumps.tmp").unlink()
