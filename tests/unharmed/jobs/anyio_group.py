"""anyio: a task group trains in threads, and a task of it receives signals (https://anyio.readthedocs.io/en/stable/signals.html)."""
# recorded: any
import os
import signal

import anyio
from small import digest, net, sgd, step


async def receive(scope):
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGUSR1) as signals:
        scope["ready"].set()
        async for one in signals:
            print("got", one.name)
            if one == signal.SIGTERM:
                scope["group"].cancel_scope.cancel()


async def main():
    model = net()
    optimizer = sgd(model)
    scope = {"ready": anyio.Event()}
    async with anyio.create_task_group() as scope["group"]:
        scope["group"].start_soon(receive, scope)
        await scope["ready"].wait()
        for number in range(10):
            await anyio.to_thread.run_sync(step, model, optimizer, number)
        os.kill(os.getpid(), signal.SIGUSR1)
        await anyio.sleep(0.1)
        print(digest(model))
        os.kill(os.getpid(), signal.SIGTERM)
        await anyio.sleep(20)
        print("not cancelled")


anyio.run(main)
