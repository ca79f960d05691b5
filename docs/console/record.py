# ruff: noqa: INP001 - a script beside the pictures that it makes
"""Take pictures of every page of the console: a real `tenure serve` on a database with work in it, in real Chromium.

python docs/console/record.py                    every page, light and dark, 1440, 1024, 390 and 320 wide, into /tmp
python docs/console/record.py bulk job           only pages whose names begin so
python docs/console/record.py --keep             also into docs/console/, 1440 and 390 wide, with 256 colours. The other
                                                 widths are for looking at only: no page of the docs shows them
"""

from __future__ import annotations

import base64
import json
import os
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from playwright.sync_api import Page, sync_playwright

import tenure
from docs.console.sample import beating, populate
from tenure.model.access import EVERYTHING

HERE = Path(__file__).parent
CHROMIUM = os.environ.get("TENURE_CHROMIUM", "/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
WIDTHS = (1440, 1024, 390, 320)
KEPT_WIDTHS = (1440, 390)
PATIENCE = 180_000
"""Milliseconds that one picture may take, on a machine that is busy."""
PLAIN = (
    "queues",
    "workers",
    "schedules",
    "workflows",
    "approvals",
    "bulk",
    "agents",
    "memory",
    "memos",
    "budgets",
    "limits",
    "metrics",
    "health",
    "gates",
    "audit",
    "access",
    "connect",
)

RULER = """() => {
  const page = document.documentElement, main = document.querySelector("main");
  const end = main.getBoundingClientRect().right - parseFloat(getComputedStyle(main).paddingRight);
  const wrong = page.scrollWidth > page.clientWidth ? [`${page.scrollWidth - page.clientWidth} px too wide`] : [];
  for (const one of main.querySelectorAll("table, form, .facts, .chips, .banners, .btns")) {
    const over = one.checkVisibility({ visibilityProperty: true }) ? one.getBoundingClientRect().right - end : 0;
    if (over > 8) wrong.push(`${one.tagName} ${one.className}: ${Math.round(over)} px into the margin`);
  }
  for (const one of main.querySelectorAll(":not(th)")) {
    const isCut = getComputedStyle(one).textOverflow === "ellipsis" && one.scrollWidth > one.clientWidth + 1;
    if (isCut && !one.closest("[title], a[href]") && !one.querySelector("[title], a[href]")) {
      wrong.push(`${one.tagName} ${one.className}: cut, and readable nowhere: ${one.textContent.slice(0, 60)}`);
    }
  }
  return wrong;
}"""
"""What is wider than its place by more than the padding of a bare button, or cut without the whole text in a title or
behind a link."""

PALETTE = """async (picture) => {
  const image = await createImageBitmap(await (await fetch(`data:image/png;base64,${picture}`)).blob());
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const data = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map();
  for (const colour of data) counts.set(colour, (counts.get(colour) ?? 0) + 1);
  const parts = (colour) => [colour & 255, (colour >> 8) & 255, (colour >> 16) & 255];
  const far = (a, b) => (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 + (a[2] - b[2]) ** 2;
  const known = [...counts].map(([colour, count]) => (
    { colour, weight: Math.sqrt(count), own: parts(colour), place: 0, away: Infinity }));
  const palette = [];
  let next = known.reduce((best, one) => (one.weight > best.weight ? one : best));
  while (palette.length < 256 && next.away > 0) {
    palette.push(next.own);
    let worst = known[0];
    for (const one of known) {
      const away = far(one.own, next.own);
      if (away < one.away) { one.away = away; one.place = palette.length - 1; }
      if (one.weight * one.away > worst.weight * worst.away) worst = one;
    }
    next = worst;
  }
  const nearest = new Map(known.map((one) => [one.colour, one.place]));
  const pixels = Uint8Array.from(data, (colour) => nearest.get(colour));
  let text = "";
  for (let at = 0; at < pixels.length; at += 8192) text += String.fromCharCode(...pixels.subarray(at, at + 8192));
  return { width: image.width, height: image.height, palette: palette.flat(), pixels: btoa(text) };
}"""
"""Reads a picture and answers its pixels as places in a palette of 256 colours. Each is chosen for how much of the
picture it brings nearer to itself: by frequency alone, the few pixels of one state took the colour of another."""


def pages(ids: dict[str, str]) -> dict[str, str]:
    """Name → path."""
    return {
        "overview": "/",
        "jobs": "/jobs",
        "jobs-filter": "/jobs?q=queue:mail+state:dead",
        "job": f"/jobs/{ids['job']}",
        "job-attempts": f"/jobs/{ids['job']}?tab=attempts",
        "job-data": f"/jobs/{ids['job']}?tab=data",
        "job-logs": f"/jobs/{ids['job']}?tab=logs",
        "job-cancel": f"/jobs/{ids['job']}/cancel",
        "job-output": f"/jobs/{ids['talk']}?tab=output",
        "bulk-act": f"/bulk/{ids['bulk']}",
        "bulk-new": "/bulk/new?act=cancel&q=queue:newsletter+state:queued",
        "memory-found": "/memory?q=brake+pads",
        "approval": f"/approvals/{ids['approval']}",
        "enqueue": "/enqueue",
        "dead-letters": "/dead-letters",
        "dead-letter-group": f"/dead-letters/{ids['dead']}",
        "dead-letter-replay": f"/dead-letters/{ids['dead']}/replay?count=5",
        **{name: f"/{name}" for name in PLAIN},
        "workflow": f"/workflows/{ids['flow']}",
        "queue": "/queues/mail",
        "queue-policy": "/queues/mail/policy",
        "worker": "/workers/one?id=media-2",
        "schedule": "/schedules/nightly_report",
        "audit-verify": "/audit/verify",
        "dead-letter-assign": f"/dead-letters/{ids['dead']}/assign",
        "not-found": "/nowhere",
    }


@contextmanager
def served(url: str) -> Iterator[str]:
    """A real server; its sign-in link."""
    command = [sys.executable, "-m", "tenure.cli.main", "serve", "--json", "--port", "0", "--url", url]
    command += ["--look-seconds", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            told = json.loads(server.stdout.readline())
            with tenure.App(url) as app:
                yield f"{told['url']}/ui/signin#{app.access.new_link('ops-1', EVERYTHING)}"
        finally:
            server.terminate()


def take(page: Page, root: str, paths: dict[str, str], folder: Path, theme: str, painter: Page | None) -> list[str]:
    """Pictures of all pages in one theme; answers what looks wrong to a ruler."""
    wrong = []
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        for name, path in paths.items():
            page.goto(f"{root}{path}", wait_until="load")
            found: Any = page.evaluate(RULER)
            wrong += [f"{name} {width} {theme}: {one}" for one in found]
            page.screenshot(path=folder / f"{name}-{theme}-{width}.png", full_page=width != 1024, timeout=PATIENCE)
            if painter is not None and width in KEPT_WIDTHS:
                taken = page.screenshot(timeout=PATIENCE)
                keep(painter, taken, HERE / f"{name}-{theme}-{width}.png")
    return wrong


def keep(painter: Page, picture: bytes, path: Path) -> None:
    """Write a picture with a palette: a quarter of the size."""
    found: Any = painter.evaluate(PALETTE, base64.b64encode(picture).decode())
    width, height, pixels = found["width"], found["height"], base64.b64decode(found["pixels"])
    lines = b"".join(b"\0" + pixels[at : at + width] for at in range(0, width * height, width))
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(found["palette"])),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


def main() -> int:
    """Take them all."""
    folder = Path(tempfile.gettempdir()) / "tenure-console"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        url = f"sqlite:///{scratch}/orders.db"
        ids = populate(url)
        with beating(url), served(url) as link, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            page = browser.new_page()
            page.goto(link)
            page.wait_for_url("**/ui/")
            root = page.url.rstrip("/")
            names = tuple(one for one in sys.argv[1:] if not one.startswith("-"))
            paths = {name: path for name, path in pages(ids).items() if not names or name.startswith(names)}
            painter = browser.new_page() if "--keep" in sys.argv else None
            wrong = [line for theme in ("light", "dark") for line in take(page, root, paths, folder, theme, painter)]
            browser.close()
    sys.stdout.write("".join(f"{line}\n" for line in wrong) + f"pictures in {folder}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
