"""concurrent.futures: threads and processes within the loop (https://github.com/optuna/optuna/issues/4539)."""
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed

from small import batch, digest, net, sgd, step


def mean(number):
    return round(float(batch(number)[0].mean()), 6)


def fails(number):
    raise LookupError(number)


if __name__ == "__main__":
    model = net()
    optimizer = sgd(model)
    with ThreadPoolExecutor(2) as threads, ProcessPoolExecutor(
            2, mp_context=multiprocessing.get_context("fork")) as processes:
        for number in range(8):
            step(model, optimizer, number)
            for pool in (threads, processes):
                print(sorted(one.result() for one in as_completed([pool.submit(mean, 10 * number + k) for k in range(3)])))
                print(repr(pool.submit(fails, number).exception()))
    print(digest(model))
