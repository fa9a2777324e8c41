"""The root logger writes down all that any library logs (https://docs.python.org/3/howto/logging.html)."""
import logging

logging.basicConfig(filename="all.log", level=logging.DEBUG, format="%(name)s %(levelname)s %(threadName)s %(message)s")
logging.captureWarnings(True)

from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
for number in range(8):
    logging.info("loss %s", step(model, optimizer, number))
print(len(logging.root.handlers), sorted(name for name in logging.root.manager.loggerDict if "distprof" in name),
      digest(model))
