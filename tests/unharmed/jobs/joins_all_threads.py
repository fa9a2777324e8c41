"""It waits for every thread of the process, whoever started it (https://docs.python.org/3/library/threading.html#threading.enumerate)."""
# telling
import threading
import time

import torch  # begins what there is to begin

print(torch.__name__, threading.active_count())

from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
for number in range(8):
    step(model, optimizer, number)
    threading.Thread(target=time.sleep, args=(0.01,)).start()
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(10)
    print([thread.name for thread in threading.enumerate()])
print(digest(model))
