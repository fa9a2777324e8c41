"""A server of a model in inference mode, with a queue and threads (https://github.com/huggingface/text-generation-inference/pull/57)."""
# recorded: any
import queue
import threading

import torch
from small import batch, digest, net

model = net().eval()
asked, answers = queue.Queue(), {}


def serve():
    while (number := asked.get()) is not None:
        with torch.inference_mode():
            result = model(batch(number)[0])
        answers[number] = digest(result), result.is_inference()


threads = [threading.Thread(target=serve) for _ in range(2)]
for thread in threads:
    thread.start()
for number in range(20):
    asked.put(number)
for _ in threads:
    asked.put(None)
for thread in threads:
    thread.join()
print(sorted(answers.items()), torch.is_inference_mode_enabled())
