"""The demo page in a real browser, against a stub of the service: what is answered is shown, and nothing else happens."""

import asyncio
import json
import re
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles

import albertkit.serve

sync_api = pytest.importorskip("playwright.sync_api")

PAGE = Path(albertkit.serve.__file__).parent / "page"
ANSWERS = json.loads(Path(__file__).with_name("page_answers.json").read_text(encoding="utf-8"))
EXAMPLES = {
    "fill-mask": "The [MASK] of the city was built in the [MASK] century.",
    "sentence-order": ["The kettle boiled.", "She poured the tea."],
    "classify": "A pleasure from the first page to the last.",
    "score": ["A man plays the guitar.", "Someone is making music."],
    "tag": "🙂 Ada Lovelace of the Analytical Society was born in London.",
    "answer": {"question": "Who wrote it?", "context": "🙂 It was written by Ada Lovelace in 1843."},
    "choose": {"context": "It rained all night.", "question": "How was the street?", "choices": ["wet", "dry"]},
    "embed": "A man plays the guitar.",
    "caption": "clip.mp4",
    "passes": "The [MASK] of the city was built in 1890.",
}
PATHS = {"embed": "similarity"}  # of endpoints that are not called as the kind
TOKENS = "[CLS] ▁the [MASK] ▁of ▁the ▁city ▁was ▁built ▁in ▁18 90 . [SEP]".split()
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync"
).split()


def passes_answer(tokens=TOKENS, passes=12, heads=4, seed=0):
    """Of the form that `look_inside` has."""
    random, count = np.random.default_rng(seed), len(tokens)
    logits = random.normal(0, 1.4, (passes, heads, count, count))
    attention = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    moves = random.normal(0, 1, (count, passes + 1, 2)) * np.linspace(1.6, 0.3, passes + 1)[None, :, None]
    steps = np.linalg.norm(moves[:, 1:], axis=-1) / 2
    words = ["centre", "wall", "rest", "cathedral", "▁<b>bold</b>"]
    said = [
        [
            {"piece": f"▁{words[(n + p // 4) % 5].removeprefix('▁')}", "probability": share}
            for n, share in enumerate(shares)
        ]
        for p, shares in enumerate(np.round(random.dirichlet([4, 2, 1, 1, 1], passes), 4).tolist())
    ]
    return {
        "model": "base", "tokens": list(tokens), "left_out": 0, "passes": passes, "attention": attention.round(4).tolist(),
        "similarity": np.linspace(0.31, 1, passes)[None].repeat(count, 0).round(4).tolist(), "step": steps.round(4).tolist(),
        "states_2d": moves.cumsum(1).round(4).tolist(), "variance": [0.4123, 0.2011],
        "predictions": [{"position": place, "passes": said} for place, piece in enumerate(tokens) if piece == "[MASK]"],
    }  # fmt: skip


class Stub:
    """The service as the page knows it; `bodies` are the requests; what it answers, and how soon, may be changed."""

    def __init__(self):
        self.app, self.bodies = FastAPI(openapi_url=None), []
        self.reset()
        self.app.middleware("http")(self.guard)
        self.app.get("/models")(lambda: {"models": self.models})
        self.app.post("/caption")(self.caption)
        self.app.post("/{kind}")(self.post)
        self.app.mount("/page", StaticFiles(directory=PAGE, html=True))

    def reset(self):
        self.bodies.clear()
        self.key, self.pause, self.answers = None, 0, ANSWERS | {"passes": passes_answer()}
        self.models = [
            {"name": "base", "kinds": list(EXAMPLES), "precision": "bf16", "notes": [], "examples": EXAMPLES},
        ]

    async def guard(self, request: Request, call_next):
        is_open = self.key is None or request.url.path.startswith("/page")
        if not is_open and request.headers.get("Authorization") != f"Bearer {self.key}":
            return refusal(401, "wrong-key", "the key is missing or wrong", "ask for one")
        return await call_next(request)

    async def caption(self, request: Request):
        form = await request.form()
        self.bodies.append(("caption", {"model": form["model"], "name": form["file"].filename}))
        return self.answers["caption"]

    async def post(self, kind: str, request: Request):
        body = await request.json()
        self.bodies.append((kind, body))
        await asyncio.sleep(self.pause)
        return self.answers[kind] if kind in self.answers else refusal(404, "not-found", kind, "")


def refusal(status, slug, message, hint):
    return JSONResponse({"error": {"slug": slug, "message": message, "hint": hint}}, status)


def served(app):
    """An app on a free port: the server and its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return server, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"


# --- the browser ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    executable = shutil.which("chromium")
    if executable is None:
        pytest.skip("there is no chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def stub():
    stub = Stub()
    server, stub.url = served(stub.app)
    yield stub
    server.should_exit = True


class Watched:
    """A page of the browser, what it complained of, and where it sent requests."""

    def __init__(self, context):
        self.page, self.complaints, self.addresses = context.new_page(), [], []
        self.page.on(
            "console", lambda message: message.type in ("error", "warning") and self.complaints.append(message.text)
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.addresses.append(request.url))


@pytest.fixture
def watched(browser, stub):
    stub.reset()
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(5000)
    watched = Watched(context)
    yield watched
    context.close()
    assert watched.complaints == []
    assert [url for url in watched.addresses if not url.startswith((f"{stub.url}/", f"blob:{stub.url}/"))] == []


@pytest.fixture
def page(watched):
    return watched.page


def opened(page, stub, kind):
    """The panel of a tab, with the answer to its example."""
    page.goto(f"{stub.url}/page/#{kind}")
    panel = page.locator(f"#panel-{kind}")
    panel.locator(".results[aria-busy=false]").wait_for()
    return panel


def texts(locator):
    return [text.strip() for text in locator.all_inner_texts()]


def rows(panel, selector):
    return [" ".join(text.split()) for text in panel.locator(selector).all_inner_texts()]


# --- each tab does its work -------------------------------------------------------------------------------------------


def test_masks_are_filled_and_their_guesses_shown(page, stub):
    panel = opened(page, stub, "fill-mask")
    assert stub.bodies == [("fill-mask", {"texts": [EXAMPLES["fill-mask"]], "top": 5, "model": "base"})]
    assert panel.locator(".reading").inner_text() == "The centre of the city was built in the 19th century."
    assert texts(panel.locator("mark")) == ["centre", "19th"]
    shown = rows(panel, ".bars li")
    assert shown[:5] == ["centre 41.4%", "wall 22.8%", "cathedral 11.9%", "rest 3.1%", ". < 0.1%"]
    assert shown[9] == "(space) 1.0%"
    bar = panel.locator(".bars li").nth(1).locator(".bar").evaluate("bar => bar.style.getPropertyValue('--share')")
    assert float(bar) == ANSWERS["fill-mask"]["results"][0]["masks"][0][1]["probability"]
    assert page.locator("#said").inner_text() == "centre, 41.4%; 19th, 60.4%"


def test_a_mask_is_inserted_where_the_caret_is(page, stub):
    panel = opened(page, stub, "fill-mask")
    field = panel.get_by_label("Text")
    field.fill("It is .")
    field.evaluate("field => field.setSelectionRange(6, 6)")
    with page.expect_response("**/fill-mask"):
        panel.get_by_role("button", name="Insert [MASK]").click()
    assert stub.bodies[-1][1]["texts"] == ["It is [MASK]."]


def test_sentences_are_ordered_and_swapped(page, stub):
    panel = opened(page, stub, "sentence-order")
    assert rows(panel, ".verdict, .balance p") == ["They stand in their order", "in order 91.2%", "swapped 8.8%"]
    stub.answers["sentence-order"] = {"model": "base", "results": [{"in_order": 0.25, "swapped": 0.75}]}
    with page.expect_response("**/sentence-order"):
        panel.get_by_role("button", name="Swap").click()
    panel.get_by_text("They are swapped").wait_for()
    assert [body["pairs"][0] for _, body in stub.bodies] == [
        EXAMPLES["sentence-order"],
        EXAMPLES["sentence-order"][::-1],
    ]


def test_the_answer_stands_in_the_text_and_candidates_show_where(page, stub):
    panel = opened(page, stub, "answer")
    assert stub.bodies[0][1] == {"questions": [EXAMPLES["answer"]], "top": 5, "model": "base"}
    assert panel.locator(".verdict").inner_text() == "Ada Lovelace"
    context, marked = panel.locator(".context"), panel.locator(".context mark")
    assert marked.inner_text() == "Ada Lovelace"  # places count characters: the emoji before it is one
    assert context.inner_text() == EXAMPLES["answer"]["context"]
    assert rows(panel, ".candidates li")[3:] == ["1843 0.9%", "no answer 0.4%"]
    candidates = panel.locator(".candidates button")
    candidates.nth(3).hover()
    assert marked.inner_text() == "1843"
    page.mouse.move(0, 0)
    assert marked.inner_text() == "Ada Lovelace"
    candidates.nth(3).focus()
    page.keyboard.press("Tab")
    assert marked.count() == 0  # no answer
    page.keyboard.press("Shift+Tab")
    assert marked.inner_text() == "1843"


def test_an_answer_that_is_not_in_the_text(page, stub):
    stub.answers["answer"] = {
        "model": "base",
        "results": [{"answer": "", "score": 0.9, "start": None, "end": None, "nbest": []}],
    }
    panel = opened(page, stub, "answer")
    assert panel.locator(".verdict").inner_text() == "It is not in the text."
    assert panel.locator("mark").count() == 0


def test_one_label_several_labels_and_a_number(page, stub):
    panel = opened(page, stub, "classify")
    assert panel.locator(".verdict").inner_text() == "positive"
    assert rows(panel, ".bars li") == ["positive 84.4%", "neutral 10.2%", "negative 5.3%"]
    stub.answers["classify"] = {
        "model": "base",
        "results": [{"labels": ["0", "b"], "probabilities": {"a": 0.2, "b": 0.7, "0": 0.6}}],
    }
    with page.expect_response("**/classify"):
        panel.get_by_label("Second text").fill("and another")
    panel.get_by_text("0, b").wait_for()
    assert stub.bodies[-1][1]["texts"] == [[EXAMPLES["classify"], "and another"]]
    assert panel.locator(".bars .first").count() == 2
    page.get_by_role("tab", name="Score").click()
    assert page.locator("#panel-score .number").inner_text() == "3.872"
    assert stub.bodies[-1][1]["texts"] == [EXAMPLES["score"]]


def test_entities_are_marked_where_they_stand(page, stub):
    panel = opened(page, stub, "tag")
    assert texts(panel.locator("mark span")) == ["Ada Lovelace", "Analytical Society", "London"]
    assert texts(panel.locator("mark small")) == ["PER", "ORG", "LOC"]
    assert (
        panel.locator(".reading").inner_text().replace("PER", "").replace("ORG", "").replace("LOC", "")
        == EXAMPLES["tag"]
    )
    assert rows(panel, ".entities li")[0] == "Ada Lovelace PER 99.2%"
    panel.locator("summary", has_text="tag of each word").click()
    assert rows(panel, ".tags li")[:3] == ["🙂 O", "Ada B-PER", "Lovelace I-PER"]


def test_a_choice_is_made(page, stub):
    panel = opened(page, stub, "choose")
    assert stub.bodies[0][1] == {"questions": [EXAMPLES["choose"]], "model": "base"}
    assert panel.locator(".verdict").inner_text() == "wet"
    assert rows(panel, ".bars li") == ["wet 92.3%", "dry 7.7%"]


def test_similarities_stand_on_colours(page, stub):
    panel = opened(page, stub, "embed")
    kind, body = stub.bodies[0]
    assert (kind, len(body["texts"])) == ("similarity", 4)
    assert panel.locator(".verdict").inner_text() == "Nearest: 1 and 2 · 0.82"
    cells = panel.locator("td[style]")
    assert texts(cells)[:5] == ["1.00", "0.82", "0.07", "−0.14", "0.82"]
    shares = cells.evaluate_all("cells => cells.map(cell => Number(cell.style.getPropertyValue('--share')))")
    assert shares == [abs(number) for row in ANSWERS["similarity"]["results"] for number in row]
    assert panel.locator("td.below").count() == 2


def test_a_video_is_described(page, stub, tmp_path):
    page.goto(f"{stub.url}/page/#caption")
    panel = page.locator("#panel-caption")
    panel.get_by_text("Choose a video file").wait_for()
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(b"no video")
    panel.get_by_label("Video").set_input_files(clip)
    panel.locator(".verdict").wait_for()
    assert stub.bodies == [("caption", {"model": "base", "name": "clip.mp4"})]
    assert panel.locator(".verdict").inner_text() == "a man is playing a guitar on a stage"
    assert rows(panel, ".captions li") == ["a person plays music score −0.89 · log-probability −4.46"]


def test_the_check_of_places_would_see_units_taken_for_characters(page, stub):
    script = (PAGE / "elements.js").read_text(encoding="utf-8")
    wrong = script.replace("Array.from(text)", 'text.split("")')
    assert wrong != script
    page.route("**/page/elements.js", lambda route: route.fulfill(body=wrong, content_type="text/javascript"))
    panel = opened(page, stub, "answer")
    assert panel.locator(".context mark").inner_text() == " Ada Lovelac"  # begins and ends a unit early


# --- the pass viewer --------------------------------------------------------------------------------------------------


def test_the_pass_viewer_by_keyboard_alone(page, stub):
    opened(page, stub, "passes")
    found = stub.answers["passes"]
    page.keyboard.press("Tab")
    reached = {}
    for _ in range(60):
        element = page.evaluate(
            "[document.activeElement.tagName, document.activeElement.type ?? '', document.activeElement.textContent]"
        )
        reached[tuple(element[:2]) if element[0] in ("INPUT", "CANVAS", "SELECT") else element[2]] = True
        if element[1] == "range":
            break
        page.keyboard.press("Tab")
    assert {"Passes", "Look inside", "Play", ("INPUT", "range")} <= set(reached)
    panel = page.locator("#panel-passes")
    guesses = panel.locator(".bars li")

    def first_guess(number):
        best = found["predictions"][0]["passes"][number - 1][0]
        return f"{best['piece'].lstrip('▁')} {100 * best['probability']:.1f}%"

    assert panel.locator("output").first.inner_text() == "Pass 12 of 12"
    assert rows(panel, ".bars li")[0] == first_guess(12)
    page.keyboard.press("ArrowLeft")
    assert panel.locator("output").first.inner_text() == "Pass 11 of 12"
    assert page.evaluate("document.activeElement.getAttribute('aria-valuetext')") == "pass 11 of 12"
    page.keyboard.press("Home")
    assert rows(panel, ".bars li")[0] == first_guess(1)
    assert panel.locator(".columns [aria-current=true] .pass").all_inner_texts()[0].endswith("1")

    page.keyboard.press("Tab")  # the head
    page.keyboard.type("2 of")
    page.keyboard.press("Tab")  # the tokens; the mask is chosen
    assert page.evaluate("document.activeElement.textContent") == "[MASK]"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-checked')") == "true"
    row = found["attention"][0][1][3]  # pass 1, head 2, token "of"
    best = int(np.argmax(row))
    said = panel.get_by_text("looks most at").inner_text()
    assert said.startswith(f"of looks most at “{TOKENS[best].lstrip('▁')}” {100 * row[best]:.1f}%")
    assert texts(panel.locator(".columns").first.locator(".value")) == [f"{step:.2f}" for step in found["step"][3]]
    assert texts(panel.locator(".columns").last.locator(".value")) == [
        f"{cosine:.2f}" for cosine in found["similarity"][3]
    ]

    page.keyboard.press("Tab")  # the matrix, from the chosen row
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert panel.locator("output").last.inner_text() == f"“the” → “the”: {found['attention'][0][1][4][1]:.3f}"
    page.keyboard.press("Enter")
    assert panel.locator(".tokens [aria-checked=true]").inner_text() == "the"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the second column
    assert panel.locator("output").first.inner_text() == "Pass 2 of 12"
    assert guesses.count() == 5


def painted(panel, places):
    """How opaque the matrix is in the middle of cells (from, to)."""
    return panel.locator("canvas").first.evaluate(
        """(canvas, [places, count]) => {
          const pen = canvas.getContext("2d"), side = Math.min(canvas.clientWidth, canvas.clientHeight);
          const chips = [...document.querySelectorAll(".tokens button")];
          const room = Math.min(84, 8 + Math.max(...chips.map((chip) => pen.measureText(chip.textContent).width)));
          const size = Math.floor((side - room) / count * 2) / 2, all = pen.getImageData(0, 0, canvas.width, canvas.height);
          const pixel = (at) => Math.floor(room + (at + 0.5) * size);
          return places.map(([from, to]) => all.data[4 * (pixel(from) * canvas.width + pixel(to)) + 3]);
        }""",
        [places, len(TOKENS)],
    )


def test_the_matrix_is_darker_where_attention_is_stronger(page, stub):
    panel = opened(page, stub, "passes")
    mean = np.mean(stub.answers["passes"]["attention"][-1], 0)
    places = [
        tuple(np.argwhere(mean == value)[0].tolist()) for value in np.quantile(mean, [1, 0.75, 0], method="nearest")
    ]
    span = max(mean.max() - mean.min(), 0.5 / len(TOKENS))
    wanted = [255 * ((mean[place] - mean.min()) / span) ** 0.6 for place in places]
    assert wanted[0] == 255 > wanted[1] > 20 > wanted[2] == 0
    np.testing.assert_allclose(painted(panel, places), wanted, atol=2)
    assert panel.get_by_text(f"an even share would be {100 / len(TOKENS):.1f}%").is_visible()


def test_attention_that_is_nearly_even_stays_pale(page, stub):
    flat = np.full((12, 4, len(TOKENS), len(TOKENS)), 1 / len(TOKENS))
    flat[..., 0, 1] *= 1.02
    stub.answers["passes"] = passes_answer() | {"attention": flat.round(5).tolist()}
    panel = opened(page, stub, "passes")
    assert max(painted(panel, [(0, 1), (2, 3)])) < 60


def test_the_passes_open_with_a_model_that_fills_masks_and_another_model_at_its_last_pass(page, stub):
    classifier = {
        "name": "classifier",
        "kinds": ["classify", "passes"],
        "precision": "bf16",
        "notes": [],
        "examples": {},
    }
    stub.models = [classifier, *stub.models]
    stub.answers["passes"] = passes_answer(passes=2)
    panel = opened(page, stub, "passes")
    assert stub.bodies[-1][1]["model"] == "base"
    assert panel.locator("output").first.inner_text() == "Pass 2 of 2"
    stub.answers["passes"] = passes_answer(passes=12)
    with page.expect_response("**/passes"):
        panel.get_by_label("Model").select_option("classifier")
    panel.get_by_text("Pass 12 of 12").wait_for()


def test_a_model_without_that_head_is_asked_without_a_mask(page, stub):
    stub.models = [{"name": "only", "kinds": ["passes"], "precision": "bf16", "notes": [], "examples": {}}]
    opened(page, stub, "passes")
    assert "[MASK]" not in stub.bodies[-1][1]["text"]


def test_many_texts_fit_beside_each_other_and_colours_begin_at_the_least_alike(page, stub):
    near = np.full((30, 30), 0.8)
    near[0, 1] = near[1, 0] = 0.9
    np.fill_diagonal(near, 1)
    stub.answers["similarity"] = {"model": "base", "results": near.tolist()}
    page.goto(f"{stub.url}/page/#embed")
    panel = page.locator("#panel-embed")
    with page.expect_response("**/similarity"):
        panel.get_by_label("Texts").fill("\n".join(f"text {n}" for n in range(30)))
    panel.get_by_text("Colours go from 0.80 to 1.00").wait_for()
    assert panel.locator(".scroll").evaluate("box => box.scrollWidth <= box.clientWidth")
    cells = panel.locator("tbody tr").first.locator("td")
    shares = cells.evaluate_all("cells => cells.map(cell => Number(cell.style.getPropertyValue('--share')))")
    np.testing.assert_allclose(shares[:3], [1, 0.5, 0], atol=1e-9)
    assert cells.nth(1).get_attribute("title") == "0.90"


def test_no_answer_beside_candidates_that_add_up_by_themselves_is_explained(page, stub):
    nbest = [{"text": "", "probability": 0.94}, {"text": "1843", "probability": 0.74, "start": 34, "end": 38}]
    stub.answers["answer"] = {"model": "base", "results": [{"answer": "", "score": 0.06, "nbest": nbest}]}
    panel = opened(page, stub, "answer")
    assert panel.get_by_text("“No answer” is judged by itself").is_visible()


def test_the_back_button_goes_to_the_tab_before(page, stub):
    opened(page, stub, "fill-mask")
    page.get_by_role("tab", name="Classify").click()
    page.locator("#panel-classify .verdict").wait_for()
    page.go_back()
    page.locator("#panel-fill-mask .reading").wait_for()
    assert page.get_by_role("tab", name="Fill in").get_attribute("aria-selected") == "true"


def test_passes_play_to_the_last_and_stop(page, stub):
    panel = opened(page, stub, "passes")
    page.clock.install()
    panel.get_by_role("button", name="Play").click()
    assert panel.locator("output").first.inner_text() == "Pass 1 of 12"
    page.clock.run_for(2 * 800)
    assert panel.locator("output").first.inner_text() == "Pass 3 of 12"
    panel.get_by_role("button", name="Pause").click()
    page.clock.run_for(8000)
    assert panel.locator("output").first.inner_text() == "Pass 3 of 12"
    panel.get_by_role("button", name="Play").click()
    page.clock.run_for(20_000)
    assert panel.locator("output").first.inner_text() == "Pass 12 of 12"
    assert panel.get_by_role("button", name="Play").is_visible()


def test_passes_without_a_mask_or_a_head_and_cut_texts(page, stub):
    stub.answers["passes"] = passes_answer(tokens=["[CLS]", "▁a", "[SEP]"], passes=24) | {
        "predictions": None,
        "left_out": 7,
    }
    panel = opened(page, stub, "passes")
    assert panel.get_by_text("What it would say").count() == 0
    assert panel.get_by_text("7 more tokens are left out").is_visible()
    assert panel.locator(".columns").first.locator("li").count() == 24


# --- what may go wrong ------------------------------------------------------------------------------------------------


def test_errors_are_said_with_their_hints(watched, stub):
    page = watched.page
    panel = opened(page, stub, "fill-mask")
    for kind in ("fill-mask", "models"):
        page.route(f"**/{kind}", lambda route: route.fulfill(
            status=422, json={"error": {"slug": "no-mask", "message": "there is no [MASK]", "hint": "for example <b>this</b>"}},
        ))  # fmt: skip
    panel.locator("button[type=submit]").click()
    fault = panel.get_by_role("alert")
    assert " ".join(fault.inner_text().split()) == "no-mask there is no [MASK] Hint: for example <b>this</b> Try again"
    page.unroute("**/fill-mask")
    fault.get_by_role("button", name="Try again").click()
    panel.locator(".bars li").first.wait_for()

    page.route("**/fill-mask", lambda route: route.abort())
    panel.locator("button[type=submit]").click()
    panel.get_by_text("the service does not answer").wait_for()
    page.unroute("**/fill-mask")
    page.route("**/fill-mask", lambda route: route.fulfill(status=502, body="<html>Bad Gateway</html>"))
    panel.locator("button[type=submit]").click()
    panel.get_by_text("it answered 502 Bad Gateway").wait_for()
    page.unroute("**/fill-mask")
    stub.answers["fill-mask"] = {"unknown": "form"}
    panel.locator("button[type=submit]").click()
    panel.get_by_text("may be of different versions").wait_for()

    stub.reset()
    page.reload()  # the models are refused, too
    page.locator("main").get_by_text("there is no [MASK]").wait_for()
    page.unroute("**/models")
    page.get_by_role("button", name="Try again").click()
    page.get_by_role("tab", name="Fill in").wait_for()
    assert [text for text in watched.complaints if "Failed to load" not in text and "TypeError" not in text] == []
    watched.complaints.clear()  # the browser notes each failed request, the page its own fault


def test_a_key_is_asked_for_and_kept_in_this_tab_only(watched, stub):
    page, stub.key = watched.page, "secret 1"
    page.goto(f"{stub.url}/page/")
    key = page.get_by_label("API key")
    key.fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("is not one it knows").wait_for()
    assert key.input_value() == ""
    key.fill("secret 1")
    page.keyboard.press("Enter")
    page.locator("#panel-fill-mask .bars li").first.wait_for()
    kept = page.evaluate(
        "[sessionStorage.length, sessionStorage.getItem('albertkit-key'), localStorage.length, document.cookie]"
    )
    assert kept == [1, "secret 1", 0, ""]
    page.locator("summary", has_text="command line").click()
    command = page.locator("pre").first.inner_text()
    assert "$KEY" in command
    assert "secret" not in command
    page.get_by_role("button", name="Forget the key").click()
    page.get_by_label("API key").wait_for()
    assert page.evaluate("sessionStorage.length") == 0
    page.keyboard.press("Escape")
    page.get_by_text("the key is missing or wrong").wait_for()
    assert all("401" in text for text in watched.complaints)
    watched.complaints.clear()


def test_typing_on_ends_the_request_that_is_under_way(page, stub):
    panel = opened(page, stub, "classify")
    ended = []
    page.on("requestfailed", lambda request: ended.append(request.post_data_json["texts"][0]))
    stub.pause = 3
    field = panel.get_by_label("Text", exact=True)
    with page.expect_request("**/classify"):
        field.fill("first")
    assert panel.locator(".results[aria-busy=true]").count() == 1
    field.press_sequentially(" and")
    page.wait_for_function("document.querySelector('#panel-classify .results').getAttribute('aria-busy') === 'false'")
    stub.pause = 0
    with page.expect_response("**/classify"):
        field.press_sequentially(" second")
    panel.locator(".results[aria-busy=false]").wait_for()
    assert ended == ["first"]
    assert stub.bodies[-1][1]["texts"] == ["first and second"]

    stub.pause = 3
    with page.expect_request("**/classify"):
        field.fill("third")
    panel.get_by_role("button", name="Stop").click()
    panel.get_by_text("Stopped.").wait_for()


EVIL = (
    "<img src=x onerror='window.caught=1'><script>window.caught=2</script>\" onfocus=alert(1) ' & \u2028 [MASK] 한국어"
)


def evil(value):
    """Every text in an answer made hostile."""
    if isinstance(value, dict):
        return {(EVIL if key in ("positive", "negative", "A") else key): evil(one) for key, one in value.items()}
    if isinstance(value, list):
        return [evil(one) for one in value]
    return EVIL if isinstance(value, str) else value


def test_hostile_texts_are_texts(page, stub):
    stub.models = [
        {"name": f"{number} {EVIL}", "kinds": list(EXAMPLES), "precision": EVIL, "notes": [EVIL], "examples": EXAMPLES}
        for number in range(2)
    ]
    stub.answers = {kind: evil(answer) for kind, answer in stub.answers.items()}
    for kind in EXAMPLES:
        panel = opened(page, stub, kind)
        for field in panel.locator("textarea, input[type=text]").all():
            field.fill(f"{EVIL}\n{EVIL}\n{EVIL}\n{EVIL}")
        panel.locator("button[type=submit]").click()
        panel.locator(".results[aria-busy=false]").wait_for()
        if kind not in ("caption", "embed", "sentence-order", "score"):
            assert "<img src=x onerror" in panel.locator(".results").inner_text(), kind
        assert panel.locator(".results .fault").count() == 0, kind
    assert page.evaluate("window.caught") is None
    assert page.locator("main img, main script").count() == 0


def test_the_policy_of_the_page_forbids_what_a_mistake_could_let_in(watched, stub):
    page = watched.page
    opened(page, stub, "score")
    with pytest.raises(sync_api.Error, match="TrustedHTML"):
        page.evaluate("document.querySelector('main').innerHTML = '<b>bold</b>'")
    with pytest.raises(sync_api.Error, match="Failed to fetch"):
        page.evaluate("fetch('https://example.org/')")
    assert len(watched.complaints) >= 2
    watched.complaints.clear()
    watched.addresses[:] = [url for url in watched.addresses if "example.org" not in url]


# --- for everybody ----------------------------------------------------------------------------------------------------


def test_only_tabs_of_what_is_served_and_a_choice_of_models(page, stub):
    stub.models = [
        {"name": "one", "kinds": ["embed", "classify"], "precision": "fp32", "notes": [], "examples": EXAMPLES},
        {
            "name": "two",
            "kinds": ["classify"],
            "precision": "int8",
            "notes": ["int8 is emulated"],
            "examples": EXAMPLES | {"classify": EXAMPLES["score"]},
        },
    ]
    panel = opened(page, stub, "classify")
    assert panel.get_by_text("trained on pairs").count() == 0
    assert texts(page.get_by_role("tab")) == ["Classify", "Similarity"]
    with page.expect_response("**/classify"):
        panel.get_by_label("Model").select_option(label="two · int8")
    assert stub.bodies[-1][1]["model"] == "two"
    assert panel.get_by_text("int8 is emulated").is_visible()
    assert panel.get_by_text("trained on pairs").is_visible()
    page.get_by_role("tab", name="Classify").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#panel-embed").is_visible()
    assert not page.locator("#panel-classify").is_visible()
    assert page.url.endswith("#embed")


def test_models_that_are_being_loaded_are_waited_for(page, stub):
    stub.models[0]["precision"] = None
    page.goto(f"{stub.url}/page/")
    page.get_by_text("being loaded").wait_for()
    stub.models[0]["precision"] = "int8"
    page.get_by_text("base · int8").first.wait_for()


def test_an_empty_form_asks_nothing(page, stub):
    panel = opened(page, stub, "tag")
    panel.get_by_label("Text").fill("  ")
    panel.get_by_text("Write a text.").wait_for()
    assert len(stub.bodies) == 1


def test_texts_run_in_their_own_direction(page, stub):
    text = "وُلدت آدا لوفلايس في لندن 🙂 한국어"
    stub.answers["tag"] = {"model": "base", "results": [{"words": ["لندن"], "tags": ["B-LOC"], "entities": [
        {"type": "LOC", "text": "لندن", "start": text.index("لندن"), "end": text.index("لندن") + 4, "score": 0.9},
    ]}]}  # fmt: skip
    panel = opened(page, stub, "tag")
    with page.expect_response("**/tag"):
        panel.get_by_label("Text").fill(text)
    panel.locator("mark", has_text="لندن").wait_for()
    for element in (panel.locator("textarea"), panel.locator(".reading"), panel.locator("mark > span")):
        assert element.evaluate("element => getComputedStyle(element).direction") == "rtl"


def test_nothing_is_wider_than_a_small_screen(page, stub):
    page.set_viewport_size({"width": 360, "height": 740})
    long = "Donaudampfschifffahrtsgesellschaft" * 8
    stub.models[0] |= {
        "name": long,
        "examples": EXAMPLES | dict.fromkeys(("fill-mask", "classify", "tag", "passes"), long),
    }
    stub.answers["classify"] = {
        "model": "base",
        "results": [{"label": long, "index": 0, "probabilities": {long: 1.0}}],
    }
    stub.answers["passes"] = passes_answer(tokens=["[CLS]", "▁" + long, *TOKENS * 4], heads=2)
    for kind in EXAMPLES:
        if kind == "caption":
            page.goto(f"{stub.url}/page/#caption")
        else:
            opened(page, stub, kind)
        width, screen = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width <= screen, kind


def test_every_control_has_a_name(page, stub):
    for kind in EXAMPLES:
        page.goto(f"{stub.url}/page/#{kind}")
        panel = page.locator(f"#panel-{kind}")
        panel.locator(".results").wait_for()
        unnamed = panel.locator("input, textarea, select").evaluate_all(
            "all => all.filter(one => !one.labels?.length).length"
        )
        assert unnamed == 0, kind


def test_colours_can_be_told_apart():
    css = (PAGE / "page.css").read_text(encoding="utf-8")
    light = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", css.split("@media")[0]))
    dark = light | dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", css.split("@media")[1]))
    least = {
        7: "ink on paper, ink on panel, ink on mark, ink on soft",
        4.5: "muted on paper, muted on panel, warm on panel, fault on panel, on-accent on accent",
        3: "edge on panel, accent on paper, accent on panel",
    }
    for colours in (light, dark):
        for ratio, pairs in least.items():
            for pair in pairs.split(", "):
                text, ground = pair.split(" on ")
                assert contrast(colours[text], colours[ground]) >= ratio, pair


def contrast(one, other):
    """WCAG 2's ratio."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour):
    shares = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


# --- with the service itself ------------------------------------------------------------------------------------------


def test_every_tab_with_models_that_are_served(browser, service, tmp_path, data):
    """`service` runs random models of every kind; what they say is no matter, that the page can show it is."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    watched = Watched(context)
    page = watched.page
    answers = {}
    page.on("response", lambda response: answers.update({response.request.url.rsplit("/", 1)[-1]: response}))
    page.goto(service.url)  # leads to the page
    page.get_by_role("tab", name="Passes").wait_for()
    assert page.get_by_role("tab").count() == len(EXAMPLES)
    clip = next((data / "videos").rglob("*.mp4"))
    for tab in page.get_by_role("tab").all():
        kind = tab.get_attribute("aria-controls").removeprefix("panel-")
        panel = page.locator(f"#panel-{kind}")
        tab.click()
        if kind == "caption":
            panel.get_by_label("Video").set_input_files(clip)
            panel.locator(".verdict").wait_for()
        panel.locator(".results[aria-busy=false]").wait_for()
        assert panel.locator(".fault").count() == 0, panel.inner_text()
        assert told(answers[PATHS.get(kind, kind)].json(), kind) in " ".join(
            panel.locator(".results").inner_text().split()
        )
    page.get_by_role("slider").press("Home")
    assert page.get_by_text("Pass 1 of 3").is_visible()
    assert watched.complaints == []
    context.close()


def told(answer, kind):
    """Some of what a panel shows of an answer."""
    if kind == "passes":
        return "Pass 3 of 3"
    if kind == "embed":
        return f"{answer['results'][0][1]:.2f}"
    (result,) = answer["results"]
    shown = {
        "fill-mask": lambda: f"{100 * result['masks'][0][1]['probability']:.1f}%",
        "sentence-order": lambda: f"{100 * result['in_order']:.1f}%",
        "classify": lambda: f"{result['label']} {100 * result['probabilities'][result['label']]:.1f}%",
        "score": lambda: f"{abs(result['value']):.3f}",
        "tag": lambda: "The tag of each word",
        "answer": lambda: f"{100 * result['nbest'][0]['probability']:.1f}%",
        "choose": lambda: f"{100 * result['probabilities']['A']:.1f}%",
        "caption": lambda: f"{abs(result['captions'][0]['score']):.2f}",
    }
    return shown[kind]()
