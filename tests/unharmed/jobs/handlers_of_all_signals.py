"""A supervisor that looks which signals somebody handles, and takes those that nobody does (https://github.com/python/cpython/issues/74224)."""
import signal

from small import digest, net, sgd, step

standard = [number for number in sorted(signal.valid_signals()) if number < signal.SIGRTMIN]
model = net()
optimizer = sgd(model)
for number in range(8):
    print([signal.Signals(one).name for one in standard
           if signal.getsignal(one) not in (signal.SIG_DFL, None)])
    step(model, optimizer, number)
print("wakeup", signal.set_wakeup_fd(-1), digest(model))
