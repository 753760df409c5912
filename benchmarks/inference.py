"""Rows `latency` and `encode`: our engines compared with transformers, ONNX Runtime and OpenVINO, on a CPU or a GPU."""

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from albertkit.batches.packed import PackedBatch
from albertkit.config import AlbertConfig
from albertkit.engines import Engine, load_engine
from albertkit.engines.engine import Precision, has_instructions, has_native_bf16
from albertkit.model import AlbertModel
from albertkit.training.processes import find_device
from benchmarks.harness import (
    CPU,
    MATMUL,
    TIMING,
    Contender,
    Peer,
    Row,
    Timing,
    busy_neighbours,
    describe_peak,
    device_name,
    matmul_peak,
    measure,
    scratch_folder,
    size_of,
    using_threads,
    versions,
    waiting,
)
from benchmarks.inputs import TEXT, Inputs, Text, Words
from benchmarks.peer_programs.inference import batches_of, doing
from benchmarks.peers import SETTLE, IdleMeter, PeerProcess, Program, open_peer
from benchmarks.trainer import make_theirs

PYTHON = "ALBERTKIT_INFERENCE_PEERS_PYTHON"
INSTALL = (
    "python -m venv PEERS && PEERS/bin/pip install 'torch==2.13.0' transformers onnx onnxscript onnxruntime openvino nncf; "
    f"then {PYTHON}=PEERS/bin/python"
)
PROGRAM = Program("inference", PYTHON, INSTALL)
TRANSFORMERS = Peer("transformers", "transformers", "pip install transformers")
REFERENCE = "transformers fp32"
LARGEST_DIFFERENCE = 1e-4  # of a state in fp32 to transformers'
LOWEST_COSINE = {"bf16": 0.999, "int8": 0.995}  # of a token's state to transformers' in fp32
SHAPES = ("1x128", "1x16", "8x128", "1x384")
TOKENS_A_ROUND = 640  # a small batch is computed several times a round, and the median taken
MOST_CALLS = 20
BATCH = 32
ORDERS = {"unsorted": False, "sorted": True}
LATENCY_NOTE = (
    "base with random weights; all return all tokens' states in fp32, without the pooler. Peers run in a process of "
    "their own with as many threads; exports, quantisation, calibration on these lengths (int8 of OpenVINO; ours and ONNX "
    "Runtime's need none) and a trial of their settings for this shape are done before the clock starts. They know the shape "
    f"beforehand and need no mask. A round is the median of several calls; {SETTLE * 1e3:.0f} ms after each contender let "
    "thread pools fall asleep"
)
ENCODE_NOTE = (
    "base with random weights; from ids to fp32 states of [CLS] in the order of the sentences, laying out batches included. "
    f"Everybody computes {BATCH} sentences at once: we as they come, without padding; peers padded to the longest of a batch, of "
    "batches as they come and of batches sorted by length over all sentences. Peers run in a process of their own with as many "
    "threads; exports, quantisation, calibration (int8 of OpenVINO, on these sentences) and a trial of their settings are done "
    "before the clock starts"
)

States = Callable[[], Any]  # np.ndarray or Tensor [..., H]
Forward = Callable[[Tensor, Tensor], Tensor]  # ids and mask [B, S] to states [B, S, H]
Work = dict[str, Any]  # see `peer_programs/inference.py`


@dataclass
class Measurement:
    """A row to be, without contenders.

    Attributes:
        title: Of the row.
        unit: Of its rates.
        count: Units of work of a run.
        gflop: Of a unit.
        note: Of the row.
        calls: Runs in a round.
        details: Of the row.
    """

    title: str
    unit: str
    count: float
    gflop: float
    note: str = ""
    calls: int = 1
    details: dict[str, Any] = field(default_factory=dict)


def latency(
    *,
    shapes: Words = (),
    peer_python: str | None = None,
    busy: int = 0,
    device: str = "cpu",
    timing: Timing = TIMING,
) -> Iterator[Row]:
    """Milliseconds of one small batch, compared with transformers, ONNX Runtime and OpenVINO in fp32, bf16 and int8.

    Args:
        shapes: SEQUENCESxLENGTH of each batch. Default: 1x128 1x16 8x128 1x384.
        peer_python: Interpreter that has the peers. Default: what ALBERTKIT_INFERENCE_PEERS_PYTHON
            names, or this one.
        busy: Other processes that compute all the while, each as much as a core.
        device: cpu, or cuda or cuda:N for a GPU, compared with transformers there, eager and
            compiled.
    """
    config = timing.model_config()
    works = {shape: fixed_work(shape, config) for shape in shapes or SHAPES}
    target = find_device(device)
    with using_threads(timing.threads):
        if device != "cpu":
            yield from _latency_on_device(works, config, target, timing.rounds or 7)
            return
        with _opened(config, works, peer_python, first_only=False) as (engines, peer):
            for shape, work in works.items():
                batch = PackedBatch.from_sequences(work["sequences"])
                measurement = _small_batch(shape, batch, config)
                measurement.title += _load_note(busy)
                measurement.note = LATENCY_NOTE
                measurement.calls = min(MOST_CALLS, max(1, TOKENS_A_ROUND // batch.num_tokens))
                measurement.details = {
                    "calls_a_round": measurement.calls,
                    "gflop": measurement.gflop,
                }
                runs = {
                    name: partial(_all_states, engine, batch) for name, engine in engines.items()
                }
                peers = {name: (name, shape) for name in peer.ready}
                with busy_neighbours(busy):
                    yield from _rows(
                        measurement, config, engines, runs, peer, peers, timing.rounds or 7
                    )


def encode(
    *,
    text: Text = TEXT,
    peer_python: str | None = None,
    sentences: int = 256,
    busy: int = 0,
    device: str = "cpu",
    timing: Timing = TIMING,
) -> Iterator[Row]:
    """Sentences a second at natural lengths, compared with peers that pad, of batches sorted by length and not.

    Args:
        peer_python: Interpreter that has the peers. Default: what ALBERTKIT_INFERENCE_PEERS_PYTHON
            names, or this one.
        sentences: How many, taken evenly from the text.
        busy: Other processes that compute all the while, each as much as a core.
        device: cpu, or cuda or cuda:N for a GPU, compared with transformers there, eager and
            compiled.
    """
    config, target = timing.model_config(), find_device(device)
    with text.open(1.0) as inputs, using_threads(timing.threads):
        sequences = sentence_ids(inputs, sentences, config)
        work = {"sequences": sequences, "batch": BATCH, "prepared": False}
        works = {name: {**work, "by_length": by_length} for name, by_length in ORDERS.items()}
        lengths = np.array(list(map(len, sequences)))
        gflop = _gflop_per_token(config, float((lengths**2).sum() / lengths.sum())) * lengths.mean()
        title = f"encode, natural lengths, batch {BATCH}, {size_of(config)}{_load_note(busy)}"
        measurement = Measurement(
            title, "sentences/s", float(len(sequences)), float(gflop), ENCODE_NOTE
        )
        measurement.details = {
            "sentences": len(sequences),
            "mean_length": float(lengths.mean()),
            "longest": int(lengths.max()),
            "padding": {name: padding(work) for name, work in works.items()},
        }
        if device != "cpu":
            yield from _encode_on_device(measurement, works, config, target, timing.rounds or 3)
            return
        measurement.details |= {"text": inputs.text_name, "gflop_per_sentence": measurement.gflop}
        with _opened(config, works, peer_python, first_only=True) as (engines, peer):
            runs = {
                name: partial(first_states, engine, sequences, CPU)
                for name, engine in engines.items()
            }
            peers = {f"{name}, {order}": (name, order) for name in peer.ready for order in works}
            with busy_neighbours(busy):
                for row in _rows(
                    measurement, config, engines, runs, peer, peers, timing.rounds or 3
                ):
                    row.details["best_padded_peer"] = {
                        order: _closest(row, order) for order in works
                    }
                    row.details["tokens_per_second"] = row.ours * float(lengths.mean())
                    yield row


def _load_note(busy: int) -> str:
    return f", beside {busy} busy process{'es' * (busy > 1)}" if busy else ""


def fixed_work(shape: str, config: AlbertConfig) -> Work:
    """Return the work of a shape: random ids, laid out before the clock starts."""
    first, _, second = shape.partition("x")
    limit = config.max_position_embeddings
    if not (first.isdecimal() and second.isdecimal() and int(first) and 1 <= int(second) <= limit):
        raise SystemExit(
            f"`{shape}` is not a shape: write SEQUENCESxLENGTH, like 1x128, with a length of at most {limit}"
        )
    ids = np.random.default_rng(0).integers(5, config.vocab_size, (int(first), int(second)))
    return {"sequences": ids.tolist(), "batch": int(first), "by_length": False, "prepared": True}


def sentence_ids(inputs: Inputs, count: int, config: AlbertConfig) -> list[list[int]]:
    """Return sentences taken evenly from the text and shuffled, as ids."""
    tokenizer = inputs.open_tokenizer(config.vocab_size)
    # Sources follow one another; batches shall mix them.
    lines = np.random.default_rng(0).permutation(np.array(inputs.lines_evenly(count), dtype=object))
    longest = config.max_position_embeddings
    return [tokenizer.encode(line, special_tokens=True)[:longest] for line in lines]


def _small_batch(shape: str, batch: PackedBatch, config: AlbertConfig) -> Measurement:
    gflop = batch.num_tokens * _gflop_per_token(config, batch.num_tokens / batch.num_sequences)
    return Measurement(f"latency, {shape}, {size_of(config)}", "batches/s", 1.0, gflop)


def _gflop_per_token(config: AlbertConfig, mean_length: float) -> float:
    return config.train_flops_per_token(mean_length, 0.0) / 3e9


def first_states(engine: Engine, sequences: list[list[int]], device: torch.device) -> np.ndarray:
    """Return fp32 [N, H] on the host: the states of first tokens, computed batch by batch in the order given."""
    parts = []
    for start in range(0, len(sequences), BATCH):
        batch = PackedBatch.from_sequences(sequences[start : start + BATCH]).to(device)
        parts.append(engine.encode(batch, positions=batch.starts).hidden)
    return torch.cat(parts).float().cpu().numpy()


def _all_states(engine: Engine, batch: PackedBatch) -> Tensor:
    return engine.encode(batch).hidden.float().unflatten(0, (batch.num_sequences, -1))


def padding(work: Work) -> float:
    """Return the share of padding in a peer's batches."""
    masks = [mask for _, (_, mask) in batches_of(work)]
    return 1 - sum(int(mask.sum()) for mask in masks) / sum(mask.size for mask in masks)


def _closest(row: Row, order: str) -> dict[str, float]:
    """Return who comes closest to us, and our ratio to it."""
    ratios = {name: ratio for name, ratio in row.ratio.items() if name.endswith(f", {order}")}
    return dict([min(ratios.items(), key=lambda item: item[1])]) if ratios else {}


# --- states of all programs compared with fp32 of transformers ------------------------------------


def comparison(states: np.ndarray, reference: np.ndarray) -> dict[str, float]:
    """Compare states [..., H] with a reference: cosines over states, the largest difference of a number."""
    if states.shape != reference.shape:
        raise SystemExit(f"states of shape {states.shape} beside {reference.shape} of {REFERENCE}")
    with np.errstate(invalid="ignore", divide="ignore"):
        lengths = np.linalg.norm(states, axis=-1) * np.linalg.norm(reference, axis=-1)
        cosines = (states * reference).sum(-1) / lengths
    return {
        "lowest_cosine": float(cosines.min()),
        "mean_cosine": float(cosines.mean()),
        "largest_difference": float(np.abs(states - reference).max()),
    }


def agrees(precision: str, agreement: dict[str, float]) -> bool:
    """Return whether a comparison is within the bound of a precision."""
    if precision == "fp32":
        return agreement["largest_difference"] <= LARGEST_DIFFERENCE
    return agreement["lowest_cosine"] >= LOWEST_COSINE[precision]


def comparisons(states: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Compare all programs with transformers in fp32, the first of several; where it is not there, with our own fp32."""
    names = [*(name for name in states if name.startswith(REFERENCE)), "albertkit fp32"]
    reference = next((states[name] for name in names if name in states), None)
    return (
        {}
        if reference is None
        else {name: comparison(found, reference) for name, found in states.items()}
    )


def judged(
    name: str, precision: str, agreements: dict[str, dict[str, float]]
) -> tuple[bool | None, str]:
    """Return `equal` and `compared` of a row of ours."""
    alone = not any(name_of_peer.startswith(REFERENCE) for name_of_peer in agreements)
    if name not in agreements or (alone and precision == "fp32"):
        return None, ""
    if precision == "fp32":
        measure = f"largest difference {agreements[name]['largest_difference']:.2g}, wanted within {LARGEST_DIFFERENCE:g}"
    else:
        measure = f"lowest cosine {agreements[name]['lowest_cosine']:.5f}, wanted at least {LOWEST_COSINE[precision]}"
    compared = f"our states with those of {'our own fp32' if alone else REFERENCE} in this run: {measure}; everybody's in details"
    return agrees(precision, agreements[name]), compared


# --- a CPU: peers in a process of their own -------------------------------------------------------


@contextmanager
def _opened(
    config: AlbertConfig, works: dict[str, Work], python: str | None, first_only: bool
) -> Iterator[tuple[dict[str, Engine], PeerProcess]]:
    """Make our engines by what they compute in, of a model with random weights, and start the peers with the same."""
    torch.manual_seed(0)
    model = AlbertModel(config, add_pooling_layer=False).eval()
    engines: dict[str, Engine] = {}
    precisions: tuple[Precision, ...] = ("int8", "bf16", "fp32")
    for precision in precisions:
        engine = load_engine(model, precision)
        engine.follows_weights = False  # as in the service
        engines.setdefault(engine.precision, engine)
    with scratch_folder() as scratch:
        model.save_pretrained(scratch / "model")
        (scratch / "works.json").write_text(json.dumps(works), encoding="utf-8")
        job = {
            "folder": str(scratch / "model"),
            "works": str(scratch / "works.json"),
            "settle": SETTLE,
        }
        with open_peer(PROGRAM, {**job, "first_only": first_only}, scratch, python) as peer:
            yield engines, peer


def _rows(
    measurement: Measurement,
    config: AlbertConfig,
    engines: dict[str, Engine],
    runs: Mapping[str, States],
    peer: PeerProcess,
    peers: dict[str, tuple[str, str]],
    rounds: int,
) -> Iterator[Row]:
    """Measure a row for each of our engines; `peers` has the setting and the work of each of theirs."""
    meter, calls, count = IdleMeter(peer), measurement.calls, measurement.count
    ours = {
        name: Contender(f"albertkit {name}", meter.ours(run, calls), count)
        for name, run in runs.items()
    }
    theirs = [
        Contender(name, meter.theirs(*arguments, calls), count) for name, arguments in peers.items()
    ]
    fast = [name for name in engines if name != "bf16" or has_native_bf16(CPU)]
    products = matrix_products(fast, MATMUL["cpu"])
    gflop = 2 * MATMUL["cpu"] ** 3 / 1e9
    peaks = {
        name: Contender(f"peak {name}", torch.inference_mode()(run), gflop)
        for name, run in products.items()
    }
    states = {f"albertkit {name}": np.asarray(run()) for name, run in runs.items()}
    agreements = comparisons(
        states | {name: peer.array(*arguments) for name, arguments in peers.items()}
    )
    packages = versions("torch", "numba", "sentencepiece") | peer.about["versions"]
    title, fields = (
        f"{measurement.title}, ours in {{}}",
        dict(missing=peer.failed(), versions=packages),
    )
    rows, best = measure(
        title, measurement.unit, ours, theirs, rounds, peaks, measurement.gflop, **fields
    )
    settings = {
        name: {work: trials[work] for _, work in peers.values()}
        for name, trials in peer.about["trials"].items()
    }
    for name, row in rows.items():
        row.equal, row.compared = judged(f"albertkit {name}", name, agreements)
        row.note = "; ".join([measurement.note, *engines[name].notes])
        row.details = {
            **measurement.details,
            "peak_gflops": best,
            "threads": {"ours": torch.get_num_threads(), **peer.about["threads"]},
            "processor_time_of_those_who_wait": meter.shares(),
            "agreement": agreements,
            # Linear layers are what a peer's int8 must have converted.
            "products": {
                "linear_layers": config.num_hidden_layers * 6 + 1,
                **peer.about["products"],
            },
            "peers_settings": settings,
        }
        if measurement.unit == "batches/s":
            row.details["milliseconds"] = _milliseconds(row)
            row.details["peak"] = (
                f"products of {MATMUL['cpu']} x {MATMUL['cpu']} in {name} with packed weights, best round"
            )
        yield row


def matrix_products(precisions: Iterable[str], width: int) -> dict[str, States]:
    """Return oneDNN's product of two square matrices, with packed weights, in each precision that the processor multiplies."""
    rows, weight = torch.randn(width, width), torch.randn(width, width)
    products: dict[str, States] = {}
    for precision in precisions:
        if precision != "int8":
            dtype = torch.bfloat16 if precision == "bf16" else torch.float32
            products[precision] = _packed_product(rows.to(dtype), weight.to(dtype))
        elif has_instructions("avx512_vnni", "amx_int8"):
            products[precision] = _int8_product(width)
    return products


def _packed_product(rows: Tensor, weight: Tensor) -> States:
    """Return oneDNN's product: torch's own of fp32 goes through MKL, which on AMD reaches less than half of it."""
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        run = partial(torch.ops.mkldnn._linear_pointwise, rows, packed, None, "none", [], "")
        run()
        return run
    except (AttributeError, RuntimeError, TypeError):  # private, and not in every torch
        return partial(torch.nn.functional.linear, rows, weight)


def _int8_product(width: int) -> States:
    """Return oneDNN's product of uint8 and int8, by torch's private operators."""
    rows = torch.randint(0, 256, (width, width), dtype=torch.uint8)
    weight = torch.ops.onednn.qlinear_prepack(
        torch.randint(-127, 128, (width, width)).to(torch.int8), None
    )
    scale, zero_points = torch.ones(width), torch.zeros(width, dtype=torch.int64)
    weights = (weight, scale, zero_points, None)
    output: tuple[Any, ...] = (1.0, 0, torch.bfloat16, "none", [], "none")
    return partial(torch.ops.onednn.qlinear_pointwise, rows, 1.0, 128, *weights, *output)


def _milliseconds(row: Row) -> dict[str, float]:
    return {"ours": 1e3 / row.ours, **{name: 1e3 / rate for name, rate in row.peers.items()}}


# --- one device, compared with transformers on it -------------------------------------------------


def _latency_on_device(
    works: dict[str, Work], config: AlbertConfig, device: torch.device, rounds: int
) -> Iterator[Row]:
    """Measure from ids on the device to the states of all tokens there."""
    ours, theirs = _models_on_device(config, device, graphs=True)
    for shape, work in works.items():
        batch = PackedBatch.from_sequences(work["sequences"]).to(device)
        ids = batch.input_ids.view(batch.num_sequences, -1)
        runs = {name: partial(_all_states, engine, batch) for name, engine in ours.items()}
        peers = {
            name: partial(forward, ids, torch.ones_like(ids)) for name, forward in theirs.items()
        }
        measurement = _small_batch(shape, batch, config)
        measurement.calls = MOST_CALLS
        yield from _rows_on_device(measurement, runs, peers, device, rounds)


def _encode_on_device(
    measurement: Measurement,
    works: dict[str, Work],
    config: AlbertConfig,
    device: torch.device,
    rounds: int,
) -> Iterator[Row]:
    """Measure from ids on the host to the states of first tokens on the host."""
    ours, theirs = _models_on_device(config, device)
    sequences = works["sorted"]["sequences"]
    runs = {name: partial(first_states, engine, sequences, device) for name, engine in ours.items()}
    peers = {}
    for name, forward in theirs.items():
        for order, work in works.items():
            peers[f"{name}, {order}"] = doing(work, partial(_padded_first_states, forward, device))
    measurement.note = ""
    yield from _rows_on_device(measurement, runs, peers, device, rounds)


def _padded_first_states(
    forward: Forward, device: torch.device, ids: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    return (
        forward(torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device))[:, 0]
        .cpu()
        .numpy()
    )


def _models_on_device(
    config: AlbertConfig, device: torch.device, graphs: bool = False
) -> tuple[dict[str, Engine], dict[str, Forward]]:
    """Return our engines and transformers' models with the same weights, by name; compiled ones on CUDA alone.

    `graphs` adds transformers compiled with CUDA graphs, one a shape: for lengths that come again.
    """
    torch.manual_seed(0)
    model = AlbertModel(config, add_pooling_layer=False).eval()
    ours, theirs = {}, {}
    forms = ("eager", "compiled") if device.type == "cuda" else ("eager",)
    for form in forms:
        own_model = copy.deepcopy(model).to(device)
        own_model.compiled = form == "compiled"
        engine = load_engine(own_model)
        ours[f"albertkit {engine.precision}{', compiled' * own_model.compiled}"] = engine
    if TRANSFORMERS.installed:
        dtypes = {"fp32": torch.float32} | (
            {"bf16": torch.bfloat16} if engine.precision == "bf16" else {}
        )
        for form in forms:
            for name, dtype in dtypes.items():
                if form == "eager" or name == engine.precision:
                    theirs[f"transformers {name}, {form}"] = _transformers(
                        model, device, dtype, form
                    )
        if graphs and len(forms) > 1:
            name = engine.precision
            theirs[f"transformers {name}, graphs"] = _transformers(
                model, device, dtypes[name], "graphs"
            )
    return ours, theirs


def _transformers(
    model: AlbertModel, device: torch.device, dtype: torch.dtype, form: str
) -> Forward:
    theirs = make_theirs(model, add_pooling_layer=False).to(device, dtype).eval()
    forward: Callable[..., Any] = theirs
    if form != "eager":
        forward = torch.compile(theirs, mode="reduce-overhead" if form == "graphs" else "default")

    @torch.inference_mode()
    def states(ids: Tensor, mask: Tensor) -> Tensor:
        return forward(input_ids=ids, attention_mask=mask).last_hidden_state.float()

    return states


def _rows_on_device(
    measurement: Measurement,
    ours: Mapping[str, States],
    theirs: Mapping[str, States],
    device: torch.device,
    rounds: int,
) -> Iterator[Row]:
    """Measure a row for each form of ours."""
    everybody, calls = {**ours, **theirs}, measurement.calls
    agreements = comparisons(
        {name: np.asarray(torch.as_tensor(run()).cpu()) for name, run in everybody.items()}
    )

    def repeated(run: States) -> None:
        for _ in range(calls):
            run()

    contenders = {
        name: Contender(name, waiting(partial(repeated, run), device), measurement.count * calls)
        for name, run in everybody.items()
    }
    precision = "bf16" if any("bf16" in name for name in ours) else "fp32"
    peaks = dict.fromkeys(
        ours, matmul_peak(torch.bfloat16 if precision == "bf16" else torch.float32, device)
    )
    title = f"{measurement.title}, {{}}, {device_name(device)}"
    fields = dict(missing=TRANSFORMERS.missing, versions=versions("torch", "transformers"))
    own_contenders, peers = ({name: contenders[name] for name in side} for side in (ours, theirs))
    rows, best = measure(
        title,
        measurement.unit,
        own_contenders,
        [*peers.values()],
        rounds,
        peaks,
        measurement.gflop,
        **fields,
    )
    for name, row in reversed(rows.items()):
        row.equal, row.compared = judged(name, precision, agreements)
        row.details = {
            **measurement.details,
            "milliseconds": _milliseconds(row),
            "gflop": measurement.gflop,
            "peak": f"{describe_peak(precision, device)}, best round",
            "matmul_tflops": best[name] / 1e3,
            "agreement": agreements,
        }
        yield row
