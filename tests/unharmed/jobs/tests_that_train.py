"""`unittest.main()` as the entry, one test of which fails (https://docs.python.org/3/library/unittest.html)."""
# ends: 1
# recorded: any
import sys
import unittest

from small import digest, net, sgd, step


class Trains(unittest.TestCase):
    def test_falls(self):
        model = net()
        optimizer = sgd(model)
        losses = [step(model, optimizer, 0) for _ in range(8)]
        print(digest(model))
        with self.assertNoLogs():
            step(model, optimizer, 0)
        self.assertLess(losses[-1], losses[0])

    def test_fails(self):
        with self.assertWarns(UserWarning):
            step(net(), sgd(net()), 0)


class Quiet:
    def write(self, text):
        print(text.strip()) if "Error" in text else None

    def flush(self):
        pass


unittest.main(testRunner=unittest.TextTestRunner(stream=Quiet()), argv=sys.argv[:1])
