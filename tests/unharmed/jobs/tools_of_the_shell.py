"""Tools of the shell between steps, which get the environment of the script (https://docs.python.org/3/library/subprocess.html)."""
import subprocess
import sys
from pathlib import Path

from small import digest, net, sgd, step

model = net()
optimizer = sgd(model)
for number in range(8):
    step(model, optimizer, number)
    Path("log").write_text(f"loss {number}\n")
    print(subprocess.run(["grep", "-c", "loss", "log"], capture_output=True, text=True, check=True).stdout.strip(),
          subprocess.run("exit 4", shell=True).returncode, subprocess.getoutput("echo from $0"),
          subprocess.check_output([sys.executable, "-c", "import sys; print(sys.argv, len(sys.path) > 1)"], text=True))
    environ = subprocess.check_output(["env"], text=True).splitlines()
    print(sorted(line for line in environ if not line.startswith(("DISTPROF_", "_="))) == sorted(
        line for line in environ if not line.startswith(("DISTPROF_", "_="))))
print(digest(model))
