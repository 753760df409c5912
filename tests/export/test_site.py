"""An exported site in a real browser, from a plain file server: it answers as the pipelines do, and without a connection.

Needs chromium and the packages of `PACKAGES` in a folder that NODE_PATH names.
"""

import functools
import http.server
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from record_files import write_json

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.errors import AlbertKitError
from albertkit.export.options import ExportWebOptions
from albertkit.export.site import PACKAGES, export_site, site_name
from albertkit.model import (
    AlbertForBeamQuestionAnswering,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertModel,
)
from albertkit.model_paths import CAPTIONER_FILE
from albertkit.pipelines.load import load_pipelines
from albertkit.tables.columns import Columns
from albertkit.tasks.models import save_task_model
from albertkit.tasks.registry import find_task

NODE_MODULES = Path(os.environ.get("NODE_PATH", ""))
TABLE = Columns(text="text", label="label")
TEXTS = ["the quick fox jumps over a lazy dog", "서울 the fox", "Wizards, brew! (quickly)", "fox"]
LONG = " ".join(TEXTS * 9)
LETTERS = "abcdefghijklmnopqrstuvwxyz!?(),"
TO_TAG = [LONG, "the fox's\u200f dog \u200d fox \u200d \x85 quickly \u200d"]
needs_packages = pytest.mark.skipif(
    not all((NODE_MODULES / name.rpartition("@")[0]).is_dir() for name in PACKAGES),
    reason="NODE_PATH has no packages",
)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A plain file server."""

    def log_message(self, *arguments):
        """Print nothing."""


@pytest.fixture
def save(make_model, tokenizer, tmp_path):
    """`save(task, class)`: a fine-tuned model as a folder."""

    def saved(task, model_class):
        save_task_model(tmp_path / "model", make_model(model_class, **task.head()), tokenizer, task)
        return tmp_path / "model"

    return saved


@pytest.fixture
def folders(save, folder, make_model, tokenizer, tmp_path):
    """Kind to a function that makes a folder of it."""

    def encoder():
        encoder = SentenceEncoder(make_model(AlbertModel), tokenizer, max_length=32)
        encoder.settings["truncate_dim"] = 24
        encoder.save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    def task(name, model_class, columns=None, **changes):
        return lambda: save(
            find_task(name, columns).with_changes(length=32, **changes), model_class
        )

    def of_wordpiece():
        model = task("squad1", AlbertForQuestionAnswering)()
        for file in model.glob("spiece.*"):
            file.unlink()
        pieces = [*"[PAD] [UNK] [CLS] [SEP] [MASK] the quick fox".split(), *LETTERS]
        vocabulary = "\n".join([*pieces, *("##" + letter for letter in LETTERS)])
        (model / "vocab.txt").write_text(vocabulary, encoding="utf-8")
        (model / "tokenizer.json").unlink()
        write_json(model / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
        return model

    classes = AlbertForSequenceClassification
    return {
        "fill-mask": lambda: folder(AlbertForPreTraining),
        "classify": task("classify", classes, TABLE, labels=("a", "b", "c")),
        "multilabel": task(
            "multilabel", classes, Columns(text="text", label="x,y"), labels=("x", "y")
        ),
        "score": task("regress", classes, TABLE),
        "tag": task(
            "ner", AlbertForTokenClassification, labels=("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
        ),
        "answer": task("squad1", AlbertForQuestionAnswering, stride=8, max_query_length=8),
        "answer or none": task(
            "squad2", AlbertForQuestionAnswering, head_kind="spans", threshold=-1.0
        ),
        "answer of WordPiece": of_wordpiece,
        "embed": encoder,
        "embed of a pretrained": lambda: folder(AlbertModel),
    }


@pytest.fixture
def opened(browser, tmp_path):
    """`opened(site)`: its page, once it shows an answer, and its server; neither may complain."""
    complaints = []
    context = browser.new_context()
    servers = []

    def open_site(site):
        handler = functools.partial(Quiet, directory=str(site))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_selector(".results[aria-busy=false] > :not(.muted)", timeout=60_000)
        return page, server

    yield open_site
    context.close()
    for server in servers:
        server.shutdown()
        server.server_close()
    assert complaints == []


@pytest.mark.peer
@needs_packages
def test_two_sites_of_one_server_keep_their_files(folders, tmp_path, browser):
    model = folders["classify"]()
    for precision in ("fp32", "int8"):
        out = tmp_path / f"in {precision}"
        options = ExportWebOptions(
            model, out, precision=precision, packages=NODE_MODULES, force=True
        )
        export_site(options)
    handler = functools.partial(Quiet, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    context = browser.new_context()

    def visit(precision):
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/in {precision}/")
        page.wait_for_selector(".results[aria-busy=false] > :not(.muted)", timeout=60_000)
        page.wait_for_function(
            "navigator.serviceWorker.ready.then(({ active }) => active.state === 'activated')"
        )
        page.close()

    visit("fp32")
    visit("int8")
    server.shutdown()
    server.server_close()
    visit("fp32")
    visit("int8")
    context.close()


def in_browser(page, path, body):
    """What the model in the browser answers to a request of the page."""
    return page.evaluate(
        "async ([path, body]) => (await import('./api.js')).ask(path, body)", [path, body]
    )["results"]


def nearly(value):
    """Numbers within 1e-4, whatever they are in; other facts of our records are not the browser's."""
    if isinstance(value, dict):
        return {name: nearly(item) for name, item in value.items()}
    if isinstance(value, list):
        return [nearly(item) for item in value]
    return pytest.approx(value, abs=1e-4) if isinstance(value, float) else value


@pytest.mark.peer
@needs_packages
@pytest.mark.parametrize(
    "kind",
    [
        "fill-mask",
        "classify",
        "multilabel",
        "score",
        "tag",
        "answer",
        "answer or none",
        "answer of WordPiece",
        "embed",
        "embed of a pretrained",
    ],
)
def test_the_browser_answers_as_the_pipeline(folders, kind, tmp_path, opened):
    model = folders[kind]()
    options = ExportWebOptions(model, tmp_path / "site", precision="fp32", packages=NODE_MODULES)
    assert export_site(options).megabytes > 10
    page, server = opened(tmp_path / "site")
    pipeline = next(iter(load_pipelines(model, precision="fp32").values()))
    if kind.startswith("embed"):
        assert in_browser(page, "similarity", {"texts": TEXTS}) == nearly(
            pipeline.similarity(TEXTS).tolist()
        )
    elif kind.startswith("answer"):
        questions = [{"question": "the fox?", "context": text} for text in (*TEXTS[:2], LONG)]
        questions += [{"question": LONG, "context": text} for text in (TEXTS[0], LONG)]
        answers = in_browser(page, "answer", {"questions": questions, "top": 5})
        for answer, expected in zip(answers, pipeline(questions), strict=True):
            assert (
                answer.items()
                >= {k: nearly(expected[k]) for k in ("answer", "start", "end", "score")}.items()
            )
            texts = [(entry["text"], nearly(entry["probability"])) for entry in expected["nbest"]]
            assert [(entry["text"], entry["probability"]) for entry in answer["nbest"]] == texts
    else:
        texts = (
            ["the [MASK] fox [MASK]", "[MASK]"]
            if kind == "fill-mask"
            else [*TEXTS, "a [MASK] [SEP]"]
        )
        texts += TO_TAG if kind == "tag" else []
        path = "classify" if kind == "multilabel" else kind
        expected = pipeline(texts)
        answers = in_browser(page, path, {"texts": texts})
        if path in ("classify", "score"):
            pairs = [["the fox", "a dog"], ["the fox", " "]]  # a second text without tokens is none
            expected += pipeline([tuple(pair) for pair in pairs])
            answers += in_browser(page, path, {"texts": pairs})
        for answer, record in zip(answers, expected, strict=True):
            assert answer == nearly(
                {name: value for name, value in record.items() if name != "index"}
            )
    server.shutdown()
    server.server_close()
    page.wait_for_function(
        "navigator.serviceWorker.ready.then((worker) => worker.active.state === 'activated')"
    )
    page.reload()
    page.wait_for_selector(".results[aria-busy=false] > :not(.muted)", timeout=60_000)
    assert page.evaluate("crossOriginIsolated")  # threads


@pytest.mark.peer
@needs_packages
def test_a_search_ranks_as_our_vectors_do(folders, tmp_path, opened):
    model = folders["embed"]()
    pasted = ["a fox", "Wizards!"]
    texts = [
        f"{text} {ending}" for ending in ("jumps", "over", "a", "dog", "quickly") for text in TEXTS
    ]
    (tmp_path / "texts.txt").write_text("\n".join([*texts[:7], " ", *texts[7:]]), encoding="utf-8")
    sources = {"texts": tmp_path / "texts.txt", "packages": NODE_MODULES}
    report = export_site(ExportWebOptions(model, tmp_path / "site", precision="fp32", **sources))
    assert report.texts == len(texts)
    page, server = opened(tmp_path / "site")
    server.shutdown()
    server.server_close()
    encoder = SentenceEncoder.from_pretrained(model)
    vectors = encoder.encode(texts)
    steps = np.abs(vectors).max(axis=1, keepdims=True) / 127
    stored = np.concatenate([np.rint(vectors / steps), encoder.encode(pasted)])
    for query in ("the lazy dog", texts[3]):
        expected = dict(
            zip(
                texts + pasted,
                encoder.similarity(encoder.encode(query), stored)[0].tolist(),
                strict=True,
            )
        )
        answers = in_browser(page, "search", {"query": query, "texts": pasted, "top": 99})
        assert [answer["score"] for answer in answers] == nearly(
            sorted(expected.values(), reverse=True)
        )
        assert {answer["text"]: answer["score"] for answer in answers} == nearly(expected)
        exact = encoder.similarity(
            encoder.encode(query), encoder.encode([answer["text"] for answer in answers])
        )[0]
        # What int8 costs
        assert [answer["score"] for answer in answers] == pytest.approx(exact.tolist(), abs=0.01)
    assert answers[0]["text"] == query


def test_a_page_has_the_name_of_the_run():
    for model in ("a/run", "a/run/final", "a", "a/seed-3/best", "org/a"):
        assert site_name(model) == "a"


def test_what_the_page_cannot_do_is_refused(save, folder, tmp_path):
    beams = (
        find_task("squad2").with_changes(length=32, head_kind="beam"),
        AlbertForBeamQuestionAnswering,
    )
    for head in (beams, (find_task("choice").with_changes(length=32), AlbertForMultipleChoice)):
        with pytest.raises(AlbertKitError, match="answers in a way that the page has not got"):
            export_site(ExportWebOptions(save(*head), tmp_path / "site"))
    classifier = save(
        find_task("classify", TABLE).with_changes(labels=("a", "b"), length=32),
        AlbertForSequenceClassification,
    )
    settings = json.loads((classifier / "tokenizer_config.json").read_text())
    write_json(classifier / "tokenizer_config.json", settings | {"truncation_side": "left"})
    with pytest.raises(AlbertKitError, match="it cuts texts at their beginning\n"):
        export_site(ExportWebOptions(classifier, tmp_path / "site"))
    model = folder(AlbertForPreTraining)
    with pytest.raises(AlbertKitError, match="its page searches no texts"):
        export_site(ExportWebOptions(model, tmp_path / "site", texts=tmp_path / "texts.txt"))
    with pytest.raises(AlbertKitError, match=r"has no package\.json") as caught:
        export_site(ExportWebOptions(model, tmp_path / "site", precision="fp32", packages=tmp_path))
    assert "npm install --ignore-scripts onnxruntime-web@" in caught.value.hint
    assert not (tmp_path / "site").exists()
    (tmp_path / "site").mkdir()
    (tmp_path / "site/mine").touch()
    with pytest.raises(AlbertKitError, match=r"\[exists\]"):
        export_site(ExportWebOptions(model, tmp_path / "site"))
    (model / CAPTIONER_FILE).write_text("{}")
    with pytest.raises(AlbertKitError, match="is a captioner"):
        export_site(ExportWebOptions(model, tmp_path / "captions"))


def test_a_site_of_packages_by_path_says_what_is_heavy(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")  # no npm
    for package, files in PACKAGES.items():
        name, version = package.rsplit("@", 1)
        for file in files:
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_bytes(b"0")
        write_json(tmp_path / name / "package.json", {"version": version, "license": "MIT"})
        (tmp_path / name / "LICENSE").write_text(f"the words of {name}")
    options = ExportWebOptions(
        folder(AlbertForPreTraining), tmp_path / "site", precision="fp32", packages=tmp_path
    )
    report = export_site(options)
    assert "slow to load" not in dict(report.sections()[0].rows())
    assert (
        "more than 200 MB" in dict(replace(report, megabytes=200.1).sections()[0].rows()).values()
    )
    assert "the words of onnxruntime-web" in (tmp_path / "site/runtime/LICENSES.txt").read_text()
    monkeypatch.setattr("albertkit.export.onnx._MAX_FILE_BYTES", 1)
    with pytest.raises(AlbertKitError, match="more than 2 GB"):
        export_site(replace(options, out=tmp_path / "large"))
    assert not (tmp_path / "large").exists()


def test_npm_is_asked_for_and_its_words_are_passed_on(folder, tmp_path, monkeypatch):
    options = ExportWebOptions(folder(AlbertForPreTraining), tmp_path / "site", force=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AlbertKitError) as caught:
        export_site(options)
    assert caught.value.slug == "not-installed"
    assert "--packages" in caught.value.hint
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho no such host >&2\nexit 1\n")
    npm.chmod(0o755)
    with pytest.raises(AlbertKitError, match=r"\[unreachable\].*no such host"):
        export_site(options)
