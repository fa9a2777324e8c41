"""Pools by spawn and by a fork server, which import this script anew (https://github.com/pytorch/pytorch/issues/44687)."""
# real
import multiprocessing
import os

print(__name__, os.environ.get("OF_PARENT"))


def square(number):
    return number * number, __name__, len(multiprocessing.active_children())


if __name__ == "__main__":
    from small import digest, net, sgd, step

    os.environ["OF_PARENT"] = "yes"
    model = net()
    optimizer = sgd(model)
    for number in range(8):
        step(model, optimizer, number)
        if number in (1, 6):
            how = "spawn" if number == 1 else "forkserver"
            with multiprocessing.get_context(how).Pool(1) as pool:
                print(how, pool.map(square, range(3)))
    print(digest(model))
