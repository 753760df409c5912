"""`export_site`: a model as a folder of files that a browser runs, from any file server or none of ours.

The page is that of the service; in the place of requests it has a worker with ONNX Runtime for
WebAssembly and Hugging Face's tokenizers.
"""

import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.command import takes
from albertkit.embeddings.data import TextInput
from albertkit.embeddings.encode import encode_file
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.folder import is_encoder_folder
from albertkit.embeddings.options import EncodeOptions
from albertkit.engines.onnx import ONNX_FILE
from albertkit.errors import (
    AlbertKitError,
    CheckpointError,
    ConfigError,
    DataError,
    MachineError,
    MissingExtraError,
)
from albertkit.export.onnx import OnnxReport, export_onnx
from albertkit.export.options import ExportOnnxOptions, ExportWebOptions
from albertkit.files import atomic_folder, check_new_folder, sha256_bytes, write_json
from albertkit.model_paths import captioner_error, is_captioner_folder, local_folder
from albertkit.output import PAGE_FOLDER
from albertkit.output.sections import FactList, Result, Section
from albertkit.pipelines.load import load_pipelines
from albertkit.pipelines.pipeline import Pipeline
from albertkit.tables.bad_rows import BadRows
from albertkit.tasks.answers import max_question_tokens
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.texts import choose_example_texts

# Of npm, with the files that the page loads. Chosen by size: 14.4 MB for both, where
# transformers.js with its default backend has 27.4. `ort-wasm-simd-threaded.wasm` has threads, and
# does without them, too.
PACKAGES = {
    "onnxruntime-web@1.30.0": (
        "dist/ort.wasm.min.mjs",
        "dist/ort-wasm-simd-threaded.mjs",
        "dist/ort-wasm-simd-threaded.wasm",
    ),
    "@huggingface/tokenizers@0.2.0": ("dist/tokenizers.min.mjs",),
}
_SITE_FILES = Path(__file__).with_name("site")
_HEAVY = 200  # megabytes of a model from which few visitors will wait
_KINDS = ("fill-mask", "classify", "score", "tag", "answer", "embed")
_SERVE = "serve it: albertkit serve"
_READS_NAMES = "reads names of special tokens in a text as such"
_ROLE = re.compile(r"best|final|run|seed-\d+")  # folders of a run
_WORDS = ("a man plays the guitar", "the 1,234 people (of Paris) said: no!", "나는 서울에서 왔다.")


@dataclass(frozen=True)
class SiteReport(Result):
    """Report of `export_site`.

    Attributes:
        out: The folder.
        kind: What its page does, of the kinds of pipelines.
        megabytes: What a first visit fetches, 1,000,000 bytes each. Servers that compress send 3.7
            of ONNX Runtime's 14.2.
        model: Report of the model's export.
        texts: How many texts the page of a sentence encoder brings to search in.
        notes: What was cut of them, and what else cannot do with the files.
    """

    out: str
    kind: str
    megabytes: float
    model: OnnxReport
    texts: int = 0
    notes: tuple[str, ...] = ()

    def sections(self) -> list[Section]:
        """Return what was written and how to look at it."""
        facts = {
            "written": self.out,
            "page": self.kind,
            "a first visit fetches": f"{self.megabytes:.1f} MB, of them {self.model.megabytes:.1f} MB for the model",
            "slow to load": f"more than {_HEAVY} MB" if self.megabytes > _HEAVY else None,
            "texts to search": f"{self.texts:,}, their vectors in int8" if self.texts else None,
            "see it": f"python -m http.server --directory {self.out}",
            "model": f"{self.model.model_class}, {self.model.precision}",
            **self.model.agreement.facts(),
            "notes": list(self.notes),
        }
        return [FactList(facts)]


@takes(ExportWebOptions)
def export_site(options: ExportWebOptions) -> SiteReport:
    """Write a folder that any file server turns into the page of a model, computed in the visitor's browser.

    Raises:
        CheckpointError: unsupported if a browser cannot do what the model does, or reads other ids;
            and what loading and `export_onnx` raise.
        MissingExtraError: not-installed without npm. DataError: missing-file if the packages lack a
            file.
        MachineError: unreachable if npm cannot fetch them.
    """
    out = Path(options.out)
    check_new_folder(out)
    folder = local_folder(options.model)
    if is_captioner_folder(folder):
        raise captioner_error(folder)
    pipeline = next(iter(load_pipelines(folder, precision="fp32", device="meta").values()))
    facts = page_facts(folder, pipeline)
    examples: dict[str, Any] = {pipeline.kind: pipeline.example}
    if pipeline.kind == "embed":
        sample = choose_example_texts(pipeline.tokenizer)
        query, *texts = [*sample.alike, *sample.ordered, sample.opinion, sample.with_names]
        examples = {"search": {"query": query, "texts": texts, "library": 0}, **examples}
    elif options.texts is not None:
        fact = f"`{options.model}` is no sentence encoder: its page searches no texts"
        raise ConfigError("conflicting-options", fact, "leave --texts out")
    notes: tuple[str, ...] = ()
    if pipeline.kind == "tag":
        notes = ("transformers.js knows no ALBERT that tags: this page alone runs it",)
    with tempfile.TemporaryDirectory() as temporary_folder, atomic_folder(out) as site:
        scratch = Path(temporary_folder)
        if options.texts is not None:
            facts["library"], notes = _write_library(
                folder,
                options.texts,
                scratch / "vectors.npy",
                site / "search",
            )
            examples["search"] |= {"texts": [], "library": facts["library"]}
        if pipeline.kind == "embed" and not is_encoder_folder(folder):
            folder = scratch / "encoder"  # whose graph makes vectors
            SentenceEncoder.from_pretrained(options.model).save_pretrained(folder)
        report = export_onnx(
            ExportOnnxOptions(
                folder,
                scratch / "onnx",
                precision=options.precision,
                data=options.data,
                masked_lm=pipeline.kind == "fill-mask",
                force=options.force,
            )
        )
        weights = f"model/onnx/{'model_quantized' if options.precision == 'int8' else 'model'}.onnx"
        _write_model(scratch / "onnx", pipeline.tokenizer, site / "model", site / weights)
        packages = options.packages or _fetch_packages(scratch)
        _copy_runtime(Path(packages), site / "runtime")
        for source in (PAGE_FOLDER, _SITE_FILES):
            shutil.copytree(source, site, dirs_exist_ok=True)
        index = site / "index.html"
        policy = "script-src 'self' 'wasm-unsafe-eval'"
        index.write_text(
            index.read_text(encoding="utf-8").replace("script-src 'self'", policy), encoding="utf-8"
        )
        model = {
            "name": site_name(options.model),
            "kinds": list(examples),
            "precision": options.precision,
            "notes": ["Computed in this browser: what you write is not sent anywhere."],
            "examples": examples,
        }
        fetched = (site / weights, *site.glob("search/vectors.int8"))
        size = sum(file.stat().st_size for file in fetched)
        write_json(site / "site.json", {"model": model, "weights": weights, "bytes": size, **facts})
        _write_offline(site)
        megabytes = sum(file.stat().st_size for file in site.rglob("*") if file.is_file()) / 1e6
        return SiteReport(
            str(out),
            pipeline.kind,
            round(megabytes, 1),
            report,
            facts.get("library", 0),
            notes,
        )


def site_name(model: str | Path) -> str:
    """Return what a page calls a model: the last part of its path that says something."""
    parts = Path(model).resolve().parts
    return next((part for part in reversed(parts) if not _ROLE.fullmatch(part)), parts[-1])


def page_facts(folder: Path, pipeline: Pipeline[Any]) -> dict[str, Any]:
    """Return what the page has to know of a model, as `site/answers.js` reads it.

    Raises:
        CheckpointError: unsupported.
    """
    tokenizer = pipeline.tokenizer
    task = getattr(pipeline, "task", None)
    if pipeline.kind not in _KINDS or getattr(task, "head_kind", "spans") == "beam":
        raise _unsupported_error(
            folder,
            f"answers in a way that the page has not got ({pipeline.kind})",
            _SERVE,
        )
    if json.loads(tokenizer.tokenizer_json())["model"].get("byte_fallback"):
        raise _unsupported_error(
            folder,
            "writes unknown characters as bytes, which the browser's tokenizer reads as unknown tokens",
            "train a vocabulary without --byte-fallback",
        )
    if pipeline.kind in ("tag", "answer"):
        for text in _WORDS:
            if tokenizer.encode(text) != [
                i for word in text.split() for i in tokenizer.encode(word)
            ]:
                reason = "has tokens across words, so that places in a text are not known"
                raise _unsupported_error(folder, reason, _SERVE)
    _refuse_first(
        folder,
        {
            "cuts texts at their beginning": tokenizer.truncation_side == "left",
            _READS_NAMES: getattr(pipeline, "reader", tokenizer) is not tokenizer,
        },
    )
    facts: dict[str, Any] = {
        "cls": tokenizer.cls_id,
        "sep": tokenizer.sep_id,
        "mask": tokenizer.mask_token if pipeline.kind == "fill-mask" else None,
        "maskId": tokenizer.mask_id,
        "specials": [
            tokenizer.id_to_piece(number)
            for number in sorted({*tokenizer.special_ids(), tokenizer.mask_id} - {None})
        ],
        "vocabulary": tokenizer.vocab_size,
    }
    if pipeline.kind == "fill-mask":
        return facts | {"length": pipeline.model.config.max_position_embeddings}
    if pipeline.kind == "embed":
        encoder = pipeline.encoder  # type: ignore[attr-defined]
        settings = encoder.settings
        similarity = settings.get("similarity_fn_name") or "cosine"
        _refuse_first(
            folder,
            {
                "has prompts": any(encoder.prompts.values()),
                "changes the case of texts": encoder.lower_case,
                _READS_NAMES: settings.get("special_names") == "tokens",
                f"compares vectors by `{similarity}`, not by their cosine": similarity != "cosine",
            },
        )
        return facts | {"length": encoder.max_length, "dimension": encoder.output_dimension(None)}
    assert task is not None
    facts["length"] = task.length
    if pipeline.kind == "answer":
        threshold = None if task.version == 1 else task.threshold or 0.0
        return facts | {
            "stride": task.stride,
            "questionLength": max_question_tokens(task.length, task.max_query_length),
            "best": task.n_best_size,
            "answerLength": task.max_answer_length,
            "threshold": threshold,
        }
    if pipeline.kind == "score":
        return facts | {"sigmoid": task.activation == "sigmoid"}
    facts |= {"labels": list(task.labels), "several": task.kind == "multilabel"}
    if pipeline.kind == "tag":
        is_iob = all(label == "O" or label[:2] in ("B-", "I-") for label in task.labels)
        _refuse_first(
            folder,
            {
                "tags characters": task.layout == "characters",
                "has labels other than O, B-… and I-…": not is_iob,
            },
        )
    return facts


def _refuse_first(folder: Path, reasons: dict[str, bool]) -> None:
    for reason in filter(reasons.get, reasons):
        raise _unsupported_error(folder, reason, _SERVE)


def _unsupported_error(folder: Path, reason: str, hint: str) -> AlbertKitError:
    return CheckpointError("unsupported", f"no page can be made of `{folder}`: it {reason}", hint)


def _write_library(
    folder: Path,
    source: str | Path,
    vectors: Path,
    out: Path,
) -> tuple[int, tuple[str, ...]]:
    """Write the texts of a file and their vectors in int8; return how many there are, and what happened to them."""
    # Without scales: each vector would have its own, and a cosine does not see it.
    from albertkit.export.graph import to_int8  # with an extra

    report = encode_file(EncodeOptions(folder, source, vectors, precision="fp32"))
    texts = [row.text for row in TextInput(str(source)).texts(BadRows())]
    rows = [row for row, text in enumerate(texts) if text.strip()]
    out.mkdir()
    write_json(out / "texts.json", [texts[row] for row in rows])
    (out / "vectors.int8").write_bytes(to_int8(np.load(vectors)[rows]).tobytes())
    return len(rows), report.notes


def _write_model(
    onnx_folder: Path,
    tokenizer: AlbertTokenizer,
    out: Path,
    weights: Path,
) -> None:
    """Lay a model out as transformers.js looks for it."""
    if (onnx_folder / f"{ONNX_FILE}.data").exists():
        raise CheckpointError(
            "unsupported",
            "the model has more than 2 GB, which no browser holds",
            "export it in int8",
        )
    weights.parent.mkdir(parents=True)
    shutil.move(onnx_folder / ONNX_FILE, weights)
    shutil.copy2(onnx_folder / "config.json", out / "config.json")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        settings = json.loads(Path(folder, "tokenizer_config.json").read_text(encoding="utf-8"))
        shutil.copy2(Path(folder, "tokenizer.json"), out / "tokenizer.json")
    # transformers.js tells the texts of a pair apart for this class alone; transformers' class of
    # that name reads other ids.
    write_json(out / "tokenizer_config.json", {**settings, "tokenizer_class": "AlbertTokenizer"})


def _fetch_packages(folder: Path) -> Path:
    """Fetch the packages by npm; return where they lie as in a folder `node_modules`."""
    try:
        subprocess.run(
            ["npm", "pack", "--silent", "--pack-destination", str(folder), *PACKAGES],
            capture_output=True,
            text=True,
            check=True,
        )
    except FileNotFoundError:
        raise MissingExtraError(
            "not-installed",
            "the page's runtime comes from npm, which is not installed",
            f"install Node.js, or name a folder `node_modules` with {' and '.join(PACKAGES)}: --packages",
        ) from None
    except subprocess.CalledProcessError as error:
        fact = f"npm cannot fetch {' and '.join(PACKAGES)}: {error.stderr.strip().rpartition(chr(10))[2]}"
        raise MachineError(
            "unreachable",
            fact,
            "name a folder `node_modules` that has them: --packages",
        ) from None
    packages = folder / "node_modules"
    for package in PACKAGES:
        name, version = package.rsplit("@", 1)
        archive = folder / f"{name.removeprefix('@').replace('/', '-')}-{version}.tgz"
        with tarfile.open(archive) as files:
            files.extractall(folder / archive.stem, filter="data")
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder / archive.stem / "package", packages / name)
    return packages


def _copy_runtime(packages: Path, out: Path) -> None:
    """Copy the files that the page loads, and the packages' licences."""
    out.mkdir()
    licences = []
    for package, names in PACKAGES.items():
        name, version = package.rsplit("@", 1)
        folder = packages / name
        missing = [file for file in ("package.json", *names) if not (folder / file).is_file()]
        if missing:
            fact = f"`{folder}` has no {missing[0]}"
            raise DataError(
                "missing-file",
                fact,
                f"npm install --ignore-scripts {' '.join(PACKAGES)}",
            )
        description = json.loads((folder / "package.json").read_text(encoding="utf-8"))
        if description["version"] != version:
            fact = (
                f"`{folder}` is version {description['version']}, the page was made with {version}"
            )
            raise ConfigError("bad-value", fact, f"npm install --ignore-scripts {package}")
        for file in names:
            shutil.copy2(folder / file, out)
        texts = [file.read_text(encoding="utf-8") for file in sorted(folder.glob("LICENSE*"))]
        licences += [
            f"{package}: {description['license']}, {description.get('homepage', '')}\n",
            *texts,
        ]
    (out / "LICENSES.txt").write_text("\n".join(licences), encoding="utf-8")


def _write_offline(site: Path) -> None:
    """Tell the script that keeps the site which files there are, and a name for this version of them."""
    files = sorted(file for file in site.rglob("*") if file.is_file() and file.name != "offline.js")
    digests = [sha256_bytes(file.read_bytes()).encode() for file in files]
    digest = sha256_bytes(b"".join(digests))[:16]
    names = ["./", *(file.relative_to(site).as_posix() for file in files)]
    script = (site / "offline.js").read_text(encoding="utf-8")
    script = script.replace("FILES = []", f"FILES = {json.dumps(names)}").replace("VERSION", digest)
    (site / "offline.js").write_text(script, encoding="utf-8")
