"""A writer of metrics as of TensorBoard: a queue, a daemon thread, a flush at exit (https://github.com/tensorflow/tensorboard/blob/master/tensorboard/summary/writer/event_file_writer.py)."""
import atexit
import queue
import struct
import threading
import zlib

from small import digest, net, sgd, step


class Writer(threading.Thread):
    def __init__(self, path):
        super().__init__(daemon=True, name="writer")
        self.items, self.file = queue.Queue(10), open(path, "wb")
        atexit.register(self.close)
        self.start()

    def run(self):
        while (item := self.items.get()) is not None:
            body = struct.pack("<qd", *item)
            self.file.write(struct.pack("<II", len(body), zlib.crc32(body)) + body)
            self.file.flush()

    def close(self):
        self.items.put(None)
        self.join()
        self.file.close()
        print("closed")


writer = Writer("events.out")
model = net()
optimizer = sgd(model)
for number in range(40):
    writer.items.put((number, step(model, optimizer, number)))
print(digest(model))
