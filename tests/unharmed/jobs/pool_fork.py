"""A pool of processes by fork makes batches within the loop (https://github.com/joblib/joblib/issues/1104)."""
import multiprocessing

from small import batch, digest, net, sgd, step


def checked(number):
    return float(batch(number)[0].sum())


if __name__ == "__main__":
    model = net()
    optimizer = sgd(model)
    for number in range(8):
        if number % 3 == 0:
            with multiprocessing.get_context("fork").Pool(2) as pool:
                print(pool.map(checked, range(number, number + 4)))
        step(model, optimizer, number)
    print(multiprocessing.active_children(), digest(model))
