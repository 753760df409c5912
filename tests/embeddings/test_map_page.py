"""The map of texts: sound HTML, hostile texts are harmless, nothing from outside; and in a browser it does what it says."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from albertkit.embeddings.map import embedding_map_page

EVIL = "</script><script>document.title='caught'</script><!-- <img src=x onerror=alert(1)> \u2028 ' \" & 한국어"
VOID = {"meta", "input"}


class Scripts(HTMLParser):
    """What a browser would take for scripts, and which tags there are; checks that tags nest."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.scripts = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] == ["script"]:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data


@pytest.fixture(scope="module")
def facts():
    texts = [EVIL, "the quick fox", "a lazy dog", "seven wizards"]
    return dict(
        coordinates=[[0, 0], [1, 0.5], [1, -0.5], [-2, 1]], texts=texts, labels=["animals", "animals", EVIL, ""],
        neighbours=[[1, 2], [2, 0], [1, 0], [0, 1]], cosines=[[0.9, 0.1], [0.8, 0.7], [0.8, 0.2], [0.5, -0.25]],
        variance=[0.4, 0.125], facts=[f"model {EVIL}"],
    )  # fmt: skip


def parsed(html):
    found = Scripts()
    found.feed(html)
    found.close()
    assert found.open == []
    return found


def test_texts_are_data_and_never_markup(facts):
    html = embedding_map_page(f"map {EVIL}", **facts)
    found = parsed(html)
    assert len(found.scripts) == 2
    data = json.loads(found.scripts[0][1])
    assert data["texts"] == facts["texts"]
    assert data["names"] == ["animals", EVIL, "(no name)"]
    assert data["labels"] == [0, 0, 1, 2]
    assert data["cosines"] == facts["cosines"]
    assert not any(tag == "img" or any(name.startswith("on") for name in attributes) for tag, attributes in found.tags)
    assert "52.5%" in html
    assert "40.0% and 12.5%" in html


def test_the_page_needs_nothing_from_outside(facts):
    html = embedding_map_page("map", **{**facts, "texts": list("abcd"), "labels": list("aabc"), "facts": []})
    assert not re.search(r"https?://|\bsrc=|@import|url\(|fetch\(|XMLHttp", html)
    assert not any(tag in {"link", "iframe"} for tag, _ in parsed(html).tags)


def test_the_most_frequent_names_have_colours_and_the_rest_share_one():
    labels = [name for number, name in enumerate("abcdefghijk") for _ in range(20 - number)]
    points = [[number, 0] for number in range(len(labels))]
    html = embedding_map_page("map", coordinates=points, texts=labels, labels=labels)
    data = json.loads(parsed(html).scripts[0][1])
    assert data["names"] == [*"abcdefgh", "3 others"]
    assert data["labels"].count(8) == 12 + 11 + 10
    assert 'data-label="8"' in html


def test_a_page_without_names_and_neighbours():
    html = embedding_map_page("map", coordinates=[[0, 0], [1, 1]], texts=["a", "b"])
    assert 'class="legend"' not in html
    assert "variance" not in html


PLAY = """
const say = (name, value) => { document.body.setAttribute("data-" + name, value); };
const pressed = (key) => document.getElementById("map").dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
const search = document.getElementById("search");
search.value = "QUICK";
search.dispatchEvent(new Event("input"));
say("matches", document.getElementById("matches").textContent);
search.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
say("kept", document.querySelector("#kept .chosen").textContent);
say("near", [...document.querySelectorAll("#kept .texts button")].map((b) => b.innerText.replace(/\\s+/g, " ")).join("|"));
pressed("ArrowDown");
say("down", document.getElementById("tip").textContent);
pressed("Enter");
say("entered", document.querySelector("#kept .chosen").textContent);
document.querySelector("[data-label='1']").click();
pressed("ArrowUp"); pressed("ArrowDown");
say("hidden", document.getElementById("tip").textContent);
pressed("Escape");
say("escaped", document.getElementById("kept").textContent);
document.querySelector("#found .texts button").click();
say("found", document.querySelector("#kept .chosen").textContent);
say("done", "yes");
"""


@pytest.mark.peer
def test_in_a_browser_search_keys_and_clicks_choose_texts(facts, tmp_path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no chromium")
    page = tmp_path / "map.html"
    page.write_text(embedding_map_page("map", **facts).replace("</body>", f"<script>{PLAY}</script></body>"))
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--window-size=1200,900"]
    shown = subprocess.run(
        [browser, *flags, "--dump-dom", Path(page).as_uri()], capture_output=True, text=True, timeout=120
    )
    said = dict(re.findall(r'data-(matches|kept|near|down|entered|hidden|escaped|found|done)="([^"]*)"', shown.stdout))
    assert said == {
        "matches": "1 found", "kept": "the quick fox", "down": "a lazy dog", "entered": "a lazy dog", "hidden": "the quick fox",
        "escaped": "Nothing is chosen.", "found": "the quick fox", "done": "yes",
        "near": said["near"],
    }  # fmt: skip
    assert said["near"].startswith("a lazy dog 0.800|&lt;/script&gt;&lt;script&gt;")
    assert "caught" not in re.search("<title>(.*?)</title>", shown.stdout)[1]
