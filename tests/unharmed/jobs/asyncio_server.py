"""An asyncio server that trains in a thread while it answers, and stops at SIGTERM (https://github.com/ros2/launch/pull/479)."""
# recorded: any
# telling
import asyncio
import os
import signal

from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
done = []


async def answer(reader, writer):
    while line := await reader.readline():
        writer.write(b"echo " + line)
        await writer.drain()
    writer.close()


async def main():
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, lambda one=one: (print("got", one.name), stopped.set()))
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    for number in range(10):
        await asyncio.to_thread(step, model, optimizer, number)
        writer.write(f"{number}\n".encode())
        done.append(await asyncio.wait_for(reader.readline(), 20))
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(stopped.wait(), 20)
    child = await asyncio.create_subprocess_exec("sh", "-c", "exit 3")
    print("child", await child.wait())
    writer.close()
    await writer.wait_closed()
    server.close()
    await asyncio.sleep(0.1)


asyncio.run(main())
print(done, digest(model))
