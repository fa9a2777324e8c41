"""`logging.config.dictConfig` disables loggers that are there, and logs to a queue in a thread (https://docs.python.org/3/library/logging.config.html)."""
import logging.config
import logging.handlers
import queue

from small import digest, net, sgd, step

lines = queue.Queue()
logging.config.dictConfig({"version": 1, "disable_existing_loggers": True, "root": {"level": "INFO"}})
target = logging.FileHandler("queued.log")
listener = logging.handlers.QueueListener(lines, target)
logging.getLogger("train").addHandler(logging.handlers.QueueHandler(lines))
listener.start()
model = net()
optimizer = sgd(model)
for number in range(8):
    logging.getLogger("train").warning("loss %.6f", step(model, optimizer, number))
listener.stop()
target.close()
print(digest(model))
