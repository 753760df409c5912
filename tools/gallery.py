"""Make docs/gallery.md: pictures of the pages that albertkit writes, of real runs.

    python tools/gallery.py QUICKSTART CLASSIFIER

QUICKSTART is the folder of `albertkit quickstart`, CLASSIFIER a run of `albertkit finetune`. Needs
Chromium.
"""

import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
PAGES, PICTURES = ROOT / "build" / "gallery", ROOT / "docs" / "gallery"
WIDTH, HEIGHT = 1280, 900
SETTLE = 3000  # milliseconds: the page of the service asks for its first answer
COLOURS = 128  # of a picture: flat drawings look the same with them, at a third of the bytes


class Shown(NamedTuple):
    """A picture of the gallery.

    Attributes:
        name: Name of the file.
        command: Command that writes the page.
        about: Caption.
        url: URL of the page.
    """

    name: str
    command: str
    about: str
    url: str


def main(quickstart: Path, classifier: Path) -> None:
    """Write the pages, take their pictures, write docs/gallery.md."""
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    PICTURES.mkdir(exist_ok=True)
    model = quickstart / "run"
    run("report", classifier, "--out", PAGES / "classifier.html")
    service, address = serve(model)
    screenshots = [
        Shown(
            "quickstart",
            "albertkit quickstart",
            "Report of `albertkit quickstart` (five minutes on two cores).",
            (quickstart / "report.html").resolve().as_uri(),
        ),
        Shown(
            "classifier",
            "albertkit report RUN",
            "Report of a fine-tuning run: curves, results with intervals, the worst mistakes.",
            (PAGES / "classifier.html").as_uri(),
        ),
        Shown(
            "service",
            "albertkit serve RUN",
            "The web page of the service; it uses the same HTTP API as any client.",
            address,
        ),
    ]
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            page = browser.new_page(
                viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce"
            )
            for screenshot in screenshots:
                page.goto(screenshot.url)
                page.wait_for_load_state("networkidle")
                page.wait_for_timeout(SETTLE)
                take(page, PICTURES / f"{screenshot.name}.png")
    finally:
        service.terminate()
        service.wait()
    how = "HTML pages of real runs. `python tools/gallery.py QUICKSTART CLASSIFIER` updates them."
    lines = ["# Gallery", "", how, ""]
    for screenshot in screenshots:
        picture = f"![{screenshot.about}](gallery/{screenshot.name}.png)"
        lines += [f"## `{screenshot.command}`", "", screenshot.about, "", picture, ""]
    (ROOT / "docs" / "gallery.md").write_text("\n".join(lines), encoding="utf-8")


def run(*arguments: object) -> None:
    """Run a command of albertkit."""
    subprocess.run([sys.executable, "-m", "albertkit", *map(str, arguments)], check=True)


def serve(model: Path) -> tuple[subprocess.Popen[str], str]:
    """Start the service; return it and the address of its page."""
    command = [sys.executable, "-m", "albertkit", "serve", str(model), "--port", "0"]
    service = subprocess.Popen(command, text=True, stderr=subprocess.PIPE)
    assert service.stderr is not None
    for line in service.stderr:
        if match := re.search(r"http://[\d.]+:\d+", line):
            while not is_ready(match[0]):
                time.sleep(0.2)
            return service, match[0]
    raise SystemExit("the service did not start")


def is_ready(address: str) -> bool:
    """Return whether the models of the service are loaded."""
    try:
        return urllib.request.urlopen(f"{address}/ready").status == 200
    except urllib.error.HTTPError:
        return False


def take(page: Page, file: Path) -> None:
    """Save a picture of what is on the screen, with few colours."""
    page.screenshot(path=file)
    with Image.open(file) as picture:
        picture.convert("RGB").quantize(COLOURS).save(file, optimize=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(*map(Path, sys.argv[1:]))
