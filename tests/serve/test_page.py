"""The demo page in a real browser, against a stub of the service: what is answered is shown, and nothing else happens."""

import asyncio
import json
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from numpy.testing import assert_allclose

from albertkit.output import PAGE_FOLDER
from albertkit.serve.service import too_long_error

sync_api = pytest.importorskip("playwright.sync_api")

ANSWERS = json.loads(Path(__file__).with_name("page_answers.json").read_text(encoding="utf-8"))
EXAMPLES = {
    "fill-mask": "The [MASK] of the city was built in the [MASK] century.",
    "sentence-order": ["The kettle boiled.", "She poured the tea."],
    "classify": "A pleasure from the first page to the last.",
    "score": ["A man plays the guitar.", "Someone is making music."],
    "tag": "🙂 Ada Lovelace of the Analytical Society was born in London.",
    "answer": {
        "question": "Who wrote it?",
        "context": "🙂 It was written by Ada Lovelace in 1843.",
    },
    "choose": {
        "context": "It rained all night.",
        "question": "How was the street?",
        "choices": ["wet", "dry"],
    },
    "embed": "A man plays the guitar.",
    "caption": "clip.mp4",
    "passes": "The [MASK] of the city was built in 1890.",
}
PATHS = {"embed": "similarity"}  # of endpoints that are not called as the kind
TOKENS = "[CLS] ▁the [MASK] ▁of ▁the ▁city ▁was ▁built ▁in ▁18 90 . [SEP]".split()
# Of one pixel
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="


def passes_answer(tokens=TOKENS, passes=12, heads=4, **changes):
    """An answer of the form that `trace_layers` has."""
    random = np.random.default_rng(0)
    count = len(tokens)
    attention = np.exp(random.normal(0, 1.4, (passes, heads, count, count)))
    attention /= attention.sum(-1, keepdims=True)
    moves = (
        random.normal(0, 1, (count, passes + 1, 2))
        * np.linspace(1.6, 0.3, passes + 1)[None, :, None]
    )
    words = "▁centre ▁wall ▁rest ▁cathedral ▁<b>bold</b>".split()
    guesses = []
    for layer, shares in enumerate(random.dirichlet([4, 2, 1, 1, 1], passes).round(4).tolist()):
        names = np.roll(words, -(layer // 4)).tolist()
        guesses.append(
            [
                {"piece": name, "probability": share}
                for name, share in zip(names, shares, strict=True)
            ]
        )
    masks = [index for index, token in enumerate(tokens) if token == "[MASK]"]
    return {
        **{
            "model": "base",
            "tokens": list(tokens),
            "left_out": 0,
            "passes": passes,
            "variance": [0.4123, 0.2011],
        },
        "attention": attention.round(4).tolist(),
        "similarity": np.linspace(0.31, 1, passes)[None].repeat(count, 0).round(4).tolist(),
        "step": (np.linalg.norm(moves[:, 1:], axis=-1) / 2).round(4).tolist(),
        "states_2d": moves.cumsum(1).round(4).tolist(),
        "predictions": [{"position": index, "passes": guesses} for index in masks],
    } | changes


def model(name="base", kinds=tuple(EXAMPLES), precision="bf16", notes=(), examples=EXAMPLES):
    """A model as `/models` lists it."""
    return {
        "name": name,
        "kinds": list(kinds),
        "precision": precision,
        "notes": list(notes),
        "examples": examples,
    }


class Stub:
    """The service as the page knows it; `bodies` are the requests; what it answers, and how soon, may be changed."""

    def __init__(self):
        self.app = FastAPI(openapi_url=None)
        self.bodies = []
        self.reset()
        self.app.middleware("http")(self.guard)
        self.app.get("/models")(lambda: {"models": self.models})
        self.app.post("/caption")(self.caption)
        self.app.post("/{kind}")(self.post)
        self.app.mount("/page", StaticFiles(directory=PAGE_FOLDER, html=True))

    def reset(self):
        self.bodies.clear()
        self.key = None
        self.pause = 0
        self.answers = ANSWERS | {"passes": passes_answer()}
        self.models = [model()]

    def will_answer(self, kind, **result):
        """Change the answer of a kind to this one result."""
        self.answers[kind] = {"model": "base", "results": [result]}

    async def guard(self, request: Request, call_next):
        is_open = self.key is None or request.url.path.startswith("/page")
        if not is_open and request.headers.get("Authorization") != f"Bearer {self.key}":
            return refusal(401, "not-allowed", "the key is missing or wrong", "ask for one")
        return await call_next(request)

    async def caption(self, request: Request):
        form = await request.form()
        self.bodies.append(("caption", {"model": form["model"], "name": form["file"].filename}))
        return self.answers["caption"]

    async def post(self, kind: str, request: Request):
        self.bodies.append((kind, await request.json()))
        await asyncio.sleep(self.pause)
        return self.answers[kind] if kind in self.answers else refusal(404, "not-found", kind, "")


def refusal(status, slug, message, hint):
    return JSONResponse({"error": {"slug": slug, "message": message, "hint": hint}}, status)


# --- the browser ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def running_stub():
    stub = Stub()
    server = uvicorn.Server(uvicorn.Config(stub.app, port=0, log_level="warning"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    stub.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield stub
    server.should_exit = True


@pytest.fixture
def stub(running_stub):
    running_stub.reset()
    return running_stub


class Watched:
    """A page of the browser, what it complained of, and where it sent requests."""

    def __init__(self, context):
        self.page = context.new_page()
        self.complaints = []
        self.addresses = []
        complain = self.complaints.append
        self.page.on(
            "console",
            lambda message: message.type in ("error", "warning") and complain(message.text),
        )
        self.page.on("pageerror", lambda error: complain(str(error)))
        self.page.on(
            "dialog", lambda dialog: (complain(f"dialog: {dialog.message}"), dialog.dismiss())
        )
        self.page.on("request", lambda request: self.addresses.append(request.url))


@pytest.fixture(scope="module")
def tabs(browser):
    """The tabs that were opened: the last is used again until a test closes it. A new one takes a processor 0.5 s."""
    opened_tabs = []
    yield opened_tabs
    for tab in opened_tabs:
        tab.page.context.close()


@pytest.fixture
def watched(browser, tabs, stub):
    if not tabs or tabs[-1].page.is_closed():
        context = browser.new_context(reduced_motion="reduce")
        context.set_default_timeout(30_000)  # a machine may have much else to do
        tabs.append(Watched(context))
    watched = tabs[-1]
    watched.page.set_viewport_size({"width": 1280, "height": 900})
    watched.complaints.clear()
    watched.addresses.clear()
    yield watched
    if not watched.page.is_closed():
        watched.page.unroute_all()
        watched.page.goto("about:blank")
    assert watched.complaints == []
    assert [
        url
        for url in watched.addresses
        if not url.startswith((f"{stub.url}/", f"blob:{stub.url}/"))
    ] == []


@pytest.fixture
def page(watched):
    return watched.page


@pytest.fixture
def opened(page, stub):
    """`opened(kind)`: the panel of a tab, with the answer to its example."""

    def find(kind, is_answered=True):
        page.goto(f"{stub.url}/page/#{kind}")
        panel = page.locator(f"#panel-{kind}")
        panel.locator(".results[aria-busy=false]" if is_answered else ".results").wait_for()
        return panel

    return find


@pytest.fixture
def answered(page):
    """`with answered(path):` what leads to a request, whose answer is awaited."""
    return lambda path: page.expect_response(f"**/{path}")


def rows(panel, selector):
    """Texts of elements, on one line each."""
    return [" ".join(text.split()) for text in panel.locator(selector).all_inner_texts()]


def layer(panel):
    """What the slider says."""
    return panel.locator("output").first.inner_text()


def shares(cells):
    """Lengths of bars, or strengths of colours."""
    return cells.evaluate_all(
        "all => all.map(one => Number(one.style.getPropertyValue('--share')))"
    )


# --- each tab does its work -----------------------------------------------------------------------

BARS = ".bars li"
VERDICT = ".verdict"
FILLED = ["centre 41.4%", "wall 22.8%", "cathedral 11.9%", "rest 3.1%", ". < 0.1%"]
FILLED += ["19th 60.4%", "previous 12.6%", "same 8.0%", "last 4.1%", "(space) 1.0%"]
SHOWN = {
    "fill-mask": (
        {"texts": [EXAMPLES["fill-mask"]], "top": 5},
        {
            ".reading": ["The centre of the city was built in the 19th century."],
            "mark": ["centre", "19th"],
            BARS: FILLED,
        },
    ),
    "sentence-order": (
        {"pairs": [EXAMPLES["sentence-order"]]},
        {".verdict, .balance p": ["They stand in their order", "in order 91.2%", "swapped 8.8%"]},
    ),
    "answer": (
        {"questions": [EXAMPLES["answer"]], "top": 5},
        {
            VERDICT: ["Ada Lovelace"],
            ".context mark": [
                "Ada Lovelace"
            ],  # places count characters: the emoji before it is one
            ".context": [EXAMPLES["answer"]["context"]],
            ".candidates li:nth-child(n+4)": ["1843 0.9%", "no answer 0.4%"],
        },
    ),
    "classify": (
        {"texts": [EXAMPLES["classify"]]},
        {VERDICT: ["positive"], BARS: ["positive 84.4%", "neutral 10.2%", "negative 5.3%"]},
    ),
    "score": ({"texts": [EXAMPLES["score"]]}, {".number": ["3.872"]}),
    "tag": (
        {"texts": [EXAMPLES["tag"]]},
        {
            "mark span": ["Ada Lovelace", "Analytical Society", "London"],
            "mark small": ["PER", "ORG", "LOC"],
            ".entities li:first-child": ["Ada Lovelace PER 99.2%"],
        },
    ),
    "choose": (
        {"questions": [EXAMPLES["choose"]]},
        {VERDICT: ["wet"], BARS: ["wet 92.3%", "dry 7.7%"]},
    ),
}


@pytest.mark.parametrize("kind", SHOWN)
def test_the_answer_to_the_example_is_shown(opened, stub, kind):
    body, expected = SHOWN[kind]
    panel = opened(kind)
    assert stub.bodies == [(kind, {**body, "model": "base"})]
    assert {selector: rows(panel, selector) for selector in expected} == expected


def test_guesses_have_bars_and_are_read_aloud(opened, page):
    panel = opened("fill-mask")
    masks = ANSWERS["fill-mask"]["results"][0]["masks"]
    assert shares(panel.locator(".bars li .bar")) == [
        guess["probability"] for mask in masks for guess in mask
    ]
    assert page.locator("#said").inner_text() == "centre, 41.4%; 19th, 60.4%"


def test_a_mask_is_inserted_where_the_caret_is(opened, stub, answered):
    panel = opened("fill-mask")
    field = panel.get_by_label("Text")
    field.fill("It is .")
    field.evaluate("field => field.setSelectionRange(6, 6)")
    with answered("fill-mask"):
        panel.get_by_role("button", name="Insert [MASK]").click()
    assert stub.bodies[-1][1]["texts"] == ["It is [MASK]."]


def test_sentences_are_swapped(opened, stub, answered):
    panel = opened("sentence-order")
    stub.will_answer("sentence-order", in_order=0.25, swapped=0.75)
    with answered("sentence-order"):
        panel.get_by_role("button", name="Swap").click()
    panel.get_by_text("They are swapped").wait_for()
    assert stub.bodies[-1][1]["pairs"] == [EXAMPLES["sentence-order"][::-1]]


def test_candidates_show_where_they_stand(opened, page):
    panel = opened("answer")
    marked = panel.locator(".context mark")
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


NBEST = [
    {"text": "", "probability": 0.94},
    {"text": "1843", "probability": 0.74, "start": 34, "end": 38},
]


@pytest.mark.parametrize(
    ("nbest", "message"),
    [
        ([], "It is not in the text."),
        (NBEST, "“No answer” is judged by itself"),
    ],
)
def test_an_answer_that_is_not_in_the_text(opened, stub, nbest, message):
    stub.will_answer("answer", answer="", score=0.9, start=None, end=None, nbest=nbest)
    panel = opened("answer")
    assert panel.get_by_text(message).is_visible()
    assert rows(panel, VERDICT) == ["It is not in the text."]
    assert panel.locator("mark").count() == 0


@pytest.mark.parametrize(
    ("kinds", "count"),
    [
        (["classify", "passes"], 0),
        (["fill-mask", "passes"], 1),
    ],
)
def test_layers_promise_words_only_of_models_that_have_them(opened, stub, kinds, count):
    stub.models = [model("one", kinds)]
    panel = opened("passes")
    assert panel.get_by_text("how far each token moves").count() == 1
    assert panel.get_by_text("would say if it stopped there").count() == count


def test_a_text_that_is_too_long_can_be_cut(complaining, opened, stub):
    features = SimpleNamespace(
        sequence_bounds=lambda count: np.arange(count + 1), lengths=np.array([24])
    )
    error = too_long_error(np.array([7]), features)
    answer = stub.answers["classify"]
    cut = {**answer, "results": [{**answer["results"][0], "tokens": 31, "truncated": 7}]}

    def refuse(route):
        wants_cut = route.request.post_data_json.get("truncate")
        error_body = {"slug": error.slug, "message": error.message, "hint": error.hint}
        route.fulfill(
            status=200 if wants_cut else 422, json=cut if wants_cut else {"error": error_body}
        )

    complaining.route("**/classify", refuse)
    panel = opened("classify")
    assert rows(panel, ".fault .hint") == ["Hint: send it in parts"]
    panel.get_by_role("button", name="Cut the text").click()
    panel.locator(".verdict").wait_for()
    assert rows(panel, ".results .note") == [
        "7 tokens at the end not read: the text is longer than the model reads."
    ]


def test_several_labels(opened, stub, answered):
    panel = opened("classify")
    stub.will_answer("classify", labels=["0", "b"], probabilities={"a": 0.2, "b": 0.7, "0": 0.6})
    with answered("classify"):
        panel.get_by_label("Second text").fill("and another")
    panel.get_by_text("0, b").wait_for()
    assert stub.bodies[-1][1]["texts"] == [[EXAMPLES["classify"], "and another"]]
    assert panel.locator(".bars .first").count() == 2


def test_entities_are_marked_where_they_stand(opened):
    panel = opened("tag")
    assert re.sub("PER|ORG|LOC", "", panel.locator(".reading").inner_text()) == EXAMPLES["tag"]
    panel.locator("summary", has_text="tag of each word").click()
    assert rows(panel, ".tags li")[:3] == ["🙂 O", "Ada B-PER", "Lovelace I-PER"]


def test_similarities_stand_on_colours(opened, stub):
    panel = opened("embed")
    kind, body = stub.bodies[0]
    assert kind == "similarity"
    assert len(body["texts"]) == 4
    assert rows(panel, VERDICT) == ["Nearest: 1 and 2 · 0.82"]
    assert rows(panel, "td[style]")[:5] == "1.00 0.82 0.07 −0.14 0.82".split()
    assert (
        shares(panel.locator("td[style]"))
        == np.abs(ANSWERS["similarity"]["results"]).ravel().tolist()
    )
    assert panel.locator("td.below").count() == 2


def test_many_texts_fit_beside_each_other_and_colours_begin_at_the_least_alike(
    opened, stub, answered
):
    near = np.full((30, 30), 0.8)
    near[0, 1] = near[1, 0] = 0.9
    np.fill_diagonal(near, 1)
    panel = opened("embed")
    stub.answers["similarity"] = {"model": "base", "results": near.tolist()}
    with answered("similarity"):
        panel.get_by_label("Texts").fill("\n".join(f"text {n}" for n in range(30)))
    panel.get_by_text("Colours go from 0.80 to 1.00").wait_for()
    assert panel.locator(".scroll").evaluate("box => box.scrollWidth <= box.clientWidth")
    cells = panel.locator("tbody tr").first.locator("td")
    assert_allclose(shares(cells)[:3], [1, 0.5, 0], atol=1e-9)
    assert cells.nth(1).get_attribute("title") == "0.90"


def test_a_video_is_described(opened, stub, tmp_path):
    (result,) = stub.answers["caption"]["results"]
    stub.answers["caption"] = {**stub.answers["caption"], "results": [{**result, "sheet": PNG}]}
    panel = opened("caption", is_answered=False)
    panel.get_by_text("Choose a video file").wait_for()
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(b"no video")
    panel.get_by_label("Video").set_input_files(clip)
    panel.locator(VERDICT).wait_for()
    assert stub.bodies == [("caption", {"model": "base", "name": "clip.mp4"})]
    assert rows(panel, VERDICT) == ["a man is playing a guitar on a stage"]
    assert rows(panel, ".captions li") == [
        "a person plays music score −0.89 · log-probability −4.46"
    ]
    assert (
        panel.locator("img.sheet").evaluate(
            "picture => picture.decode().then(() => picture.naturalWidth)"
        )
        == 1
    )


# --- the layer viewer -----------------------------------------------------------------------------


def test_the_layer_viewer_by_keyboard_alone(opened, page, stub):
    panel = opened("passes")
    answer = stub.answers["passes"]
    press = page.keyboard.press

    def focused(attribute):
        return page.evaluate(f"document.activeElement.{attribute}")

    press("Tab")
    reached = set()
    for _ in range(60):
        reached.add(
            focused("type")
            if focused("tagName") in ("INPUT", "CANVAS", "SELECT")
            else focused("textContent")
        )
        if focused("type") == "range":
            break
        press("Tab")
    assert {"Layers", "Look inside", "Play", "range"} <= reached

    def best_guess(number):
        best = answer["predictions"][0]["passes"][number - 1][0]
        return f"{best['piece'].lstrip('▁')} {100 * best['probability']:.1f}%"

    assert layer(panel) == "Layer 12 of 12"
    assert rows(panel, BARS)[0] == best_guess(12)
    press("ArrowLeft")
    assert layer(panel) == "Layer 11 of 12"
    assert focused("getAttribute('aria-valuetext')") == "layer 11 of 12"
    press("Home")
    assert rows(panel, BARS)[0] == best_guess(1)
    assert rows(panel, ".columns [aria-current=true] .pass")[0].endswith("1")

    press("Tab")  # the head
    page.keyboard.type("2 of")
    press("Tab")  # the tokens; the mask is chosen
    assert focused("textContent") == "[MASK]"
    press("ArrowRight")
    assert focused("getAttribute('aria-checked')") == "true"
    row = answer["attention"][0][1][3]  # layer 1, head 2, token "of"
    best = int(np.argmax(row))
    sentence = panel.get_by_text("looks most at").inner_text()
    assert sentence.startswith(
        f"of looks most at “{TOKENS[best].lstrip('▁')}” {100 * row[best]:.1f}%"
    )
    for columns, values in (
        (panel.locator(".columns").first, "step"),
        (panel.locator(".columns").last, "similarity"),
    ):
        assert rows(columns, ".value") == [f"{value:.2f}" for value in answer[values][3]]

    press("Tab")  # the matrix, from the chosen row
    press("ArrowRight")
    press("ArrowDown")
    assert (
        panel.locator("output").last.inner_text()
        == f"“the” → “the”: {answer['attention'][0][1][4][1]:.3f}"
    )
    press("Enter")
    assert rows(panel, ".tokens [aria-checked=true]") == ["the"]
    press("Tab")
    press("Tab")
    press("Enter")  # the second column
    assert layer(panel) == "Layer 2 of 12"
    assert panel.locator(BARS).count() == 5


def painted(panel, cells):
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
        [cells, len(TOKENS)],
    )


def test_the_matrix_is_darker_where_attention_is_stronger(opened, stub):
    panel = opened("passes")
    mean = np.mean(stub.answers["passes"]["attention"][-1], 0)
    levels = np.quantile(mean, [1, 0.75, 0], method="nearest")
    cells = [tuple(np.argwhere(mean == value)[0].tolist()) for value in levels]
    span = max(mean.max() - mean.min(), 0.5 / len(TOKENS))
    expected = [255 * ((mean[cell] - mean.min()) / span) ** 0.6 for cell in cells]
    assert expected[0] == 255 > expected[1] > 20 > expected[2] == 0
    assert_allclose(painted(panel, cells), expected, atol=2)
    assert panel.get_by_text(f"an even share would be {100 / len(TOKENS):.1f}%").is_visible()


def test_attention_that_is_nearly_even_stays_pale(opened, stub):
    flat = np.full((12, 4, len(TOKENS), len(TOKENS)), 1 / len(TOKENS))
    flat[..., 0, 1] *= 1.02
    stub.answers["passes"] = passes_answer(attention=flat.round(5).tolist())
    assert max(painted(opened("passes"), [(0, 1), (2, 3)])) < 60


def test_the_layers_open_with_a_model_that_fills_masks_and_another_model_at_its_last_layer(
    opened, stub, answered
):
    stub.models = [model("classifier", ["classify", "passes"], examples={}), model()]
    stub.answers["passes"] = passes_answer(passes=2)
    panel = opened("passes")
    assert stub.bodies[-1][1]["model"] == "base"
    assert layer(panel) == "Layer 2 of 2"
    stub.answers["passes"] = passes_answer(passes=12)
    with answered("passes"):
        panel.get_by_label("Model").select_option("classifier")
    panel.get_by_text("Layer 12 of 12").wait_for()


def test_a_model_without_that_head_is_asked_without_a_mask(opened, stub):
    stub.models = [model("only", ["passes"], examples={})]
    opened("passes")
    assert "[MASK]" not in stub.bodies[-1][1]["text"]


def test_layers_play_to_the_last_and_stop(opened, page):
    panel = opened("passes")
    page.clock.install()
    for button, milliseconds, expected in (
        *(
            ("Play", 0, "Layer 1 of 12"),
            (None, 2 * 800, "Layer 3 of 12"),
            ("Pause", 8000, "Layer 3 of 12"),
        ),
        ("Play", 20_000, "Layer 12 of 12"),
    ):
        if button is not None:
            panel.get_by_role("button", name=button).click()
        page.clock.run_for(milliseconds)
        assert layer(panel) == expected
    assert panel.get_by_role("button", name="Play").is_visible()
    page.close()  # its clock goes no further


def test_layers_without_a_mask_or_a_head_and_cut_texts(opened, stub):
    stub.answers["passes"] = passes_answer(
        ["[CLS]", "▁a", "[SEP]"], 24, predictions=None, left_out=7
    )
    panel = opened("passes")
    assert panel.get_by_text("What it would say").count() == 0
    assert panel.get_by_text("7 more tokens are left out").is_visible()
    assert panel.locator(".columns").first.locator("li").count() == 24


# --- what may go wrong ----------------------------------------------------------------------------

ERROR = {"slug": "bad-input", "message": "there is no [MASK]", "hint": "for example <b>this</b>"}


@pytest.fixture
def complaining(watched):
    """The page, where the browser notes each failed request, and the page its own fault."""
    yield watched.page
    assert [
        text
        for text in watched.complaints
        if "Failed to load" not in text and "TypeError" not in text
    ] == []
    watched.complaints.clear()


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (
            {"status": 422, "json": {"error": ERROR}},
            "bad-input there is no [MASK] Hint: for example <b>this</b> Try",
        ),
        (None, "the service does not answer"),
        ({"status": 502, "body": "<html>Bad Gateway</html>"}, "it answered 502 Bad Gateway"),
        ({"json": {"unknown": "form"}}, "may be of different versions"),
    ],
)
def test_errors_are_shown_with_their_hints(complaining, opened, reply, message):
    panel = opened("fill-mask")
    complaining.route(
        "**/fill-mask", lambda route: route.fulfill(**reply) if reply else route.abort()
    )
    panel.locator("button[type=submit]").click()
    alert = panel.get_by_role("alert")
    alert.wait_for()
    assert message in " ".join(alert.inner_text().split())
    complaining.unroute("**/fill-mask")
    if reply and "json" in reply and "error" in reply["json"]:
        alert.get_by_role("button", name="Try again").click()
        panel.locator(BARS).first.wait_for()


def test_models_that_are_refused_can_be_asked_for_again(complaining, stub):
    complaining.route("**/models", lambda route: route.fulfill(status=422, json={"error": ERROR}))
    complaining.goto(f"{stub.url}/page/")
    complaining.locator("main").get_by_text("there is no [MASK]").wait_for()
    complaining.unroute("**/models")
    complaining.get_by_role("button", name="Try again").click()
    complaining.get_by_role("tab", name="Fill in").wait_for()


def test_a_key_is_asked_for_and_kept_in_this_tab_only(watched, page, stub):
    stub.key = "secret 1"
    page.goto(f"{stub.url}/page/")
    key = page.get_by_label("API key")
    key.fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("is not one it knows").wait_for()
    assert key.input_value() == ""
    key.fill("secret 1")
    page.keyboard.press("Enter")
    page.locator("#panel-fill-mask .bars li").first.wait_for()
    storage = "[sessionStorage.length, sessionStorage.getItem('albertkit-key'), localStorage.length, document.cookie]"
    assert page.evaluate(storage) == [1, "secret 1", 0, ""]
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


def test_typing_on_ends_the_request_that_is_under_way(opened, page, stub, answered):
    panel = opened("classify")
    ended = []
    page.on("requestfailed", lambda request: ended.append(request.post_data_json["texts"][0]))
    stub.pause = 3
    field = panel.get_by_label("Text", exact=True)
    with page.expect_request("**/classify"):
        field.fill("first")
    assert panel.locator(".results[aria-busy=true]").count() == 1
    field.press_sequentially(" and")
    panel.locator(".results[aria-busy=false]").wait_for()
    stub.pause = 0
    with answered("classify"):
        field.press_sequentially(" second")
    panel.locator(".results[aria-busy=false]").wait_for()
    assert ended == ["first"]
    assert stub.bodies[-1][1]["texts"] == ["first and second"]

    stub.pause = 3
    with page.expect_request("**/classify"):
        field.fill("third")
    panel.get_by_role("button", name="Stop").click()
    panel.get_by_text("Stopped.").wait_for()
    page.close()  # and its listener


EVIL = "<img src=x onerror='window.caught=1'><script>window.caught=2</script>"
EVIL += "\" onfocus=alert(1) ' & \u2028 [MASK] 한국어"


def evil(value):
    """Every text in an answer made hostile."""
    if isinstance(value, dict):
        return {
            (EVIL if key in ("positive", "negative", "A") else key): evil(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [evil(item) for item in value]
    return EVIL if isinstance(value, str) else value


def test_hostile_texts_are_texts(opened, page, stub):
    stub.models = [model(f"{number} {EVIL}", precision=EVIL, notes=[EVIL]) for number in range(2)]
    stub.answers = {kind: evil(answer) for kind, answer in stub.answers.items()}
    for kind in EXAMPLES:
        panel = opened(kind)
        for field in panel.locator("textarea, input[type=text]").all():
            field.fill("\n".join([EVIL] * 4))
        panel.locator("button[type=submit]").click()
        panel.locator(".results[aria-busy=false]").wait_for()
        if kind not in ("caption", "embed", "sentence-order", "score"):
            assert "<img src=x onerror" in panel.locator(".results").inner_text(), kind
        assert panel.locator(".results .fault").count() == 0, kind
    assert page.evaluate("window.caught") is None
    assert page.locator("main img, main script").count() == 0


def test_the_policy_of_the_page_forbids_what_a_mistake_could_let_in(watched, page, opened):
    opened("score")
    with pytest.raises(sync_api.Error, match="TrustedHTML"):
        page.evaluate("document.querySelector('main').innerHTML = '<b>bold</b>'")
    with pytest.raises(sync_api.Error, match="Failed to fetch"):
        page.evaluate("fetch('https://example.org/')")
    assert len(watched.complaints) >= 2
    watched.complaints.clear()
    watched.addresses[:] = [url for url in watched.addresses if "example.org" not in url]


# --- for everybody --------------------------------------------------------------------------------


def test_only_tabs_of_what_is_served_and_a_choice_of_models(opened, page, stub, answered):
    pairs = EXAMPLES | {"classify": EXAMPLES["score"]}
    second_model = model("two", ["classify"], "int8", ["int8 is emulated"], pairs)
    stub.models = [model("one", ["embed", "classify"], "fp32"), second_model]
    panel = opened("classify")
    assert panel.get_by_text("trained on pairs").count() == 0
    assert rows(page, "[role=tab]") == ["Classify", "Similarity"]
    with answered("classify"):
        panel.get_by_label("Model").select_option(label="two · int8")
    assert stub.bodies[-1][1]["model"] == "two"
    assert panel.get_by_text("int8 is emulated").is_visible()
    assert panel.get_by_text("trained on pairs").is_visible()
    assert panel.get_by_text("Only for models of pairs").count() == 0
    with answered("classify"):
        panel.get_by_label("Second text").fill("another")
    assert panel.get_by_text("trained on pairs").count() == 0
    with answered("classify"):
        panel.get_by_label("Model").select_option(label="one · fp32")
    assert panel.get_by_text("Only for models of pairs").is_visible()
    page.get_by_role("tab", name="Classify").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#panel-embed").is_visible()
    assert not page.locator("#panel-classify").is_visible()
    assert page.url.endswith("#embed")


def test_the_back_button_goes_to_the_tab_before(opened, page):
    opened("fill-mask")
    page.get_by_role("tab", name="Classify").click()
    page.locator("#panel-classify .verdict").wait_for()
    page.go_back()
    page.locator("#panel-fill-mask .reading").wait_for()
    assert page.get_by_role("tab", name="Fill in").get_attribute("aria-selected") == "true"


def test_models_that_are_being_loaded_are_waited_for(page, stub):
    stub.models[0]["precision"] = None
    page.goto(f"{stub.url}/page/")
    page.get_by_text("being loaded").wait_for()
    stub.models[0]["precision"] = "int8"
    page.get_by_text("base · int8").first.wait_for()


def test_an_empty_form_asks_nothing(opened, stub):
    panel = opened("tag")
    panel.get_by_label("Text").fill("  ")
    panel.get_by_text("Write a text.").wait_for()
    assert len(stub.bodies) == 1


def test_texts_run_in_their_own_direction(opened, stub, answered):
    text = "وُلدت آدا لوفلايس في لندن 🙂 한국어"
    city = "لندن"
    start = text.index(city)
    entity = {"type": "LOC", "text": city, "start": start, "end": start + 4, "score": 0.9}
    stub.will_answer("tag", words=[city], tags=["B-LOC"], entities=[entity])
    panel = opened("tag")
    with answered("tag"):
        panel.get_by_label("Text").fill(text)
    panel.locator("mark", has_text=city).wait_for()
    for selector in ("textarea", ".reading", "mark > span"):
        assert (
            panel.locator(selector).evaluate("element => getComputedStyle(element).direction")
            == "rtl"
        )


def test_nothing_is_wider_than_a_small_screen(opened, page, stub):
    page.set_viewport_size({"width": 360, "height": 740})
    long = "Donaudampfschifffahrtsgesellschaft" * 8
    stub.models = [
        model(
            long,
            examples=EXAMPLES | dict.fromkeys(("fill-mask", "classify", "tag", "passes"), long),
        )
    ]
    stub.will_answer("classify", label=long, index=0, probabilities={long: 1.0})
    stub.answers["passes"] = passes_answer(["[CLS]", "▁" + long, *TOKENS * 4], heads=2)
    for kind in EXAMPLES:
        opened(kind, is_answered=kind != "caption")
        width, screen = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width <= screen, kind


def test_every_control_has_a_name(opened):
    unnamed = "all => all.filter(one => !one.labels?.length).length"
    for kind in EXAMPLES:
        controls = opened(kind, is_answered=False).locator("input, textarea, select")
        assert controls.evaluate_all(unnamed) == 0, kind


MIN_CONTRAST = {  # contrast that WCAG 2 asks for
    7: "ink on paper, ink on panel, ink on mark, ink on soft",
    4.5: "muted on paper, muted on panel, warm on panel, fault on panel, on-accent on accent",
    3: "edge on panel, accent on paper, accent on panel",
}


@pytest.mark.parametrize("dark", [False, True])
def test_colours_can_be_told_apart(dark):
    parts = (PAGE_FOLDER / "page.css").read_text(encoding="utf-8").split("@media")[: 1 + dark]
    colours = dict(
        pair for part in parts for pair in re.findall(r"--([\w-]+): (#[0-9a-f]{6});", part)
    )
    for ratio, pairs in MIN_CONTRAST.items():
        for pair in pairs.split(", "):
            darker, lighter = sorted(luminance(colours[name]) for name in pair.split(" on "))
            assert (lighter + 0.05) / (darker + 0.05) >= ratio, pair


def luminance(colour):
    """WCAG 2's relative luminance."""
    shares = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


# --- with the service itself ----------------------------------------------------------------------


def percent(share):
    return f"{100 * share:.1f}%"


SHOWN_OF_RESULT = {  # some of what a panel shows of a result
    "fill-mask": lambda result: percent(result["masks"][0][1]["probability"]),
    "sentence-order": lambda result: percent(result["in_order"]),
    "classify": lambda result: (
        f"{result['label']} {percent(result['probabilities'][result['label']])}"
    ),
    "score": lambda result: f"{abs(result['value']):.3f}",
    "tag": lambda result: "The tag of each word",
    "answer": lambda result: percent(result["nbest"][0]["probability"]),
    "choose": lambda result: percent(result["probabilities"]["A"]),
    "caption": lambda result: f"{abs(result['captions'][0]['score']):.2f}",
    "embed": lambda result: f"{result[1]:.2f}",
    "passes": lambda result: "Layer 3 of 3",
}


def test_every_tab_with_models_that_are_served(browser, service, data):
    """`service` runs random models of every kind; what they say is no matter, that the page can show it is."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    watched = Watched(context)
    page = watched.page
    answers = {}
    page.on(
        "response",
        lambda response: answers.update({response.request.url.rsplit("/", 1)[-1]: response}),
    )
    page.goto(service.url)  # leads to the page
    page.get_by_role("tab", name="Layers").wait_for()
    assert page.get_by_role("tab").count() == len(EXAMPLES)
    clip = next((data / "videos").rglob("*.mp4"))
    for tab in page.get_by_role("tab").all():
        kind = tab.get_attribute("aria-controls").removeprefix("panel-")
        panel = page.locator(f"#panel-{kind}")
        tab.click()
        if kind == "caption":
            panel.get_by_label("Video").set_input_files(clip)
            panel.locator(VERDICT).wait_for()
        panel.locator(".results[aria-busy=false]").wait_for()
        assert panel.locator(".fault").count() == 0, panel.inner_text()
        results = answers[PATHS.get(kind, kind)].json().get("results", [None])
        assert SHOWN_OF_RESULT[kind](results[0]) in rows(panel, ".results")[0]
    page.get_by_role("slider").press("Home")
    assert page.get_by_text("Layer 1 of 3").is_visible()
    assert watched.complaints == []
    context.close()
