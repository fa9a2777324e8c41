"""Two threads with a model each, side by side (https://github.com/pytorch/pytorch/issues/17199)."""
# recorded: any
import threading

from small import digest, net, sgd, train

models = [net(seed) for seed in range(2)]
threads = [threading.Thread(target=train, args=(model, sgd(model), 12)) for model in models]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(digest(*models))
