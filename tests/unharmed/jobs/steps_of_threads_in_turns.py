"""Steps run on one thread of a pool, then on another, as `asyncio.to_thread` has it (https://docs.python.org/3/library/asyncio-task.html)."""
# recorded: any
# telling
from concurrent.futures import ThreadPoolExecutor

from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
    for number in range(12):
        pool = other if number >= 4 else one  # where a timeline is recorded from step 3 to step 4
        print(number, pool.submit(step, model, optimizer, number).result())
print(digest(model))
