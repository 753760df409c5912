"""Measure albertkit on this machine: tokenizing, inference in every precision, training updates, and the machine's matrix rate.

Everything runs once a round, so that a machine whose speed drifts slows everything alike; rates are medians over the rounds.
Comparisons with other libraries are in `benchmarks/` of the source repository.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch

from albertkit.config import AlbertConfig
from albertkit.corpus import builtin_documents
from albertkit.engines import load_engine
from albertkit.engines.engine import PRECISIONS
from albertkit.engines.processor import has, native_bf16
from albertkit.frame.command import takes
from albertkit.frame.result import Result
from albertkit.frame.section import Facts, Section, Table
from albertkit.inference.options import BenchOptions
from albertkit.model import AlbertForPreTraining, AlbertModel, PackedBatch
from albertkit.pretraining.objective import PretrainingObjective
from albertkit.tokenizer import AlbertTokenizer, train_tokenizer
from albertkit.training.distributed import find_device
from albertkit.training.hardware import choose_precision
from albertkit.training.optimizers import clip_gradients, make_optimizer

Run = Callable[[], Any]
Name = TypeVar("Name", bound=str)

ROUNDS = 3
LENGTH, SEQUENCES, MASKED = 128, 8, 19  # tokens, sequences of a large batch, masked tokens of a sequence
VOCABULARY = 2000  # of the tokenizer that is trained where no model is named
DOCUMENTS = 2000  # of the built-in text: about 0.6 MB
PEAK_WIDTH = 1536  # of the square matrices whose product measures the machine; on a GPU 8192


@dataclass(frozen=True)
class Rate:
    """Rate of one work in one precision.

    Attributes:
        work: "encode" or "train".
        precision: What is computed in.
        tokens_per_second: Of batches of 8 sequences of 128 tokens.
        milliseconds: Of one sequence of 128 tokens; None for training.
        share_of_peak: Operations of the rate over those of large matrix products in the same precision; None where the
            machine has no such product.
        peak_gflops: Rate of those products, in 10^9 operations a second.
    """

    work: str
    precision: str
    tokens_per_second: float
    milliseconds: float | None = None
    share_of_peak: float | None = None
    peak_gflops: float | None = None


@dataclass(frozen=True)
class Speed(Result):
    """Rates on this machine.

    Attributes:
        device: Where the model was computed.
        threads: Threads of torch and of the tokenizer.
        model: What was measured.
        tokenize_mb_per_second: Millions of bytes of UTF-8 text turned into tokens.
        tokenize_tokens_per_second: The same in tokens.
        rates: Of inference in every precision, and of pretraining updates.
    """

    device: str
    threads: int
    model: str
    tokenize_mb_per_second: float
    tokenize_tokens_per_second: float
    rates: tuple[Rate, ...]

    def sections(self) -> list[Section]:
        """Return the facts, and a table of the rates."""
        values = {name: value for name, value in vars(self).items() if name != "rates"}
        forms = ("{}", "{}", "{:,.0f}", "{:.1f}", "{:.0%}", "{:,.0f}")
        rows = []
        for rate in self.rates:
            cells = zip(forms, vars(rate).values(), strict=True)
            rows.append([None if value is None else form.format(value) for form, value in cells])
        columns = ["work", "precision", "tokens/s", f"ms for 1x{LENGTH}", "share of peak", "peak, GFLOP/s"]
        return [
            Facts(values),
            Table(columns, rows, note="peak: products of large matrices in the same precision, best round"),
        ]


@takes(BenchOptions)
def bench(options: BenchOptions) -> Speed:
    """Measure tokens a second of tokenizing, inference and pretraining updates; see `BenchOptions`."""
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads or before)
    try:
        return _measure(options.model, find_device(options.device))
    finally:
        torch.set_num_threads(before)


def _measure(model: Path | None, place: torch.device) -> Speed:
    lines = list(chain.from_iterable(islice(builtin_documents(), DOCUMENTS)))
    tokenizer, encoder = _load(model, lines)
    config = encoder.config
    small, large = (_random_batch(config, sequences).to(place) for sequences in (1, SEQUENCES))
    dtype = choose_precision("auto", place)
    training = "bf16" if dtype is torch.bfloat16 else "fp32"
    engines = {}
    for precision in PRECISIONS:
        engine = load_engine(encoder.to(place), precision)
        engine.follows_weights = False  # as in the service
        engines[engine.precision] = engine

    encode_lines = partial(tokenizer.encode_batch, lines, num_threads=torch.get_num_threads())
    runs: dict[str, Run] = {"tokenize": encode_lines, "train": _update(config, large, dtype)}
    for name, engine in engines.items():
        runs |= {f"{name} small": partial(engine.encode, small), f"{name} large": partial(engine.encode, large)}
    width = PEAK_WIDTH if place.type == "cpu" else 8192
    products = matrix_products({*engines, training}, width, place)
    seconds = _interleaved(runs | {f"{name} peak": run for name, run in products.items()}, place)

    medians = {name: median(seconds[name]) for name in runs}
    peaks = {name: 2 * width**3 / min(seconds[f"{name} peak"]) / 1e9 for name in products}
    forward = config.train_flops_per_token(float(LENGTH), 0.0) / 3
    works: list[tuple[str, str, str, float | None, float]]
    works = [("encode", name, f"{name} large", 1e3 * medians[f"{name} small"], forward) for name in engines]
    works.append(("train", training, "train", None, config.train_flops_per_token(float(LENGTH), MASKED / LENGTH)))
    rates = []
    for work, form, run, milliseconds, flop in works:
        tokens_per_second, peak = SEQUENCES * LENGTH / medians[run], peaks.get(form)
        share = None if peak is None else tokens_per_second * flop / 1e9 / peak
        rates.append(Rate(work, form, tokens_per_second, milliseconds, share, peak))
    megabytes = sum(len(line.encode()) + 1 for line in lines) / 1e6
    return Speed(
        device=str(place),
        threads=torch.get_num_threads(),
        model=str(model or "base, random weights"),
        tokenize_mb_per_second=megabytes / medians["tokenize"],
        tokenize_tokens_per_second=len(encode_lines().ids) / medians["tokenize"],
        rates=tuple(rates),
    )


def matrix_products(precisions: Iterable[Name], width: int, device: torch.device) -> dict[Name, Run]:
    """Return the product of two square matrices in each precision; on a CPU oneDNN's with packed weights."""
    rows, weight = torch.randn(width, width), torch.randn(width, width)
    products: dict[Name, Run] = {}
    for name in precisions:
        dtype = torch.bfloat16 if name == "bf16" else torch.float32
        if name == "int8":
            if has("avx512_vnni", "amx_int8"):
                products[name] = _int8_product(width)
        elif device.type == "cpu" and (name == "fp32" or native_bf16(device)):
            products[name] = _packed_product(rows.to(dtype), weight.to(dtype))
        else:
            products[name] = partial(torch.matmul, rows.to(device, dtype), weight.to(device, dtype))
    return products


def _packed_product(rows: torch.Tensor, weight: torch.Tensor) -> Run:
    """Return oneDNN's product: torch's own of fp32 goes through MKL, which on AMD reaches less than half of it."""
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        run = partial(torch.ops.mkldnn._linear_pointwise, rows, packed, None, "none", [], "")
        run()
        return run
    except (AttributeError, RuntimeError, TypeError):  # private, and not in every torch
        return partial(torch.nn.functional.linear, rows, weight)


def _int8_product(width: int) -> Run:
    """Return oneDNN's product of uint8 and int8, by torch's private operators."""
    rows = torch.randint(0, 256, (width, width), dtype=torch.uint8)
    weight = torch.ops.onednn.qlinear_prepack(torch.randint(-127, 128, (width, width)).to(torch.int8), None)
    scale, zero_points = torch.ones(width), torch.zeros(width, dtype=torch.int64)
    weights = (weight, scale, zero_points, None)
    output: tuple[Any, ...] = (1.0, 0, torch.bfloat16, "none", [], "none")
    return partial(torch.ops.onednn.qlinear_pointwise, rows, 1.0, 128, *weights, *output)


def _load(model: Path | None, lines: Sequence[str]) -> tuple[AlbertTokenizer, AlbertModel]:
    if model is not None:
        return AlbertTokenizer.from_pretrained(model), AlbertModel.from_pretrained(model).eval()
    with TemporaryDirectory(prefix="albertkit-bench-") as folder:
        tokenizer = train_tokenizer(lines, Path(folder), vocab_size=VOCABULARY)
    torch.manual_seed(0)
    return tokenizer, AlbertModel(AlbertConfig.from_size("base")).eval()


def _random_batch(config: AlbertConfig, sequences: int) -> PackedBatch:
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(5, config.vocab_size, (sequences, LENGTH), generator=random)
    places = torch.rand(sequences, LENGTH, generator=random).argsort(1)[:, :MASKED].sort(1).values
    orders = torch.randint(0, 2, (sequences,), generator=random).tolist()
    return PackedBatch.from_sequences(ids.tolist(), None, places.tolist(), ids.gather(1, places).tolist(), orders)


def _update(config: AlbertConfig, batch: PackedBatch, dtype: torch.dtype) -> Run:
    """Return a pretraining update as `pretrain` makes it."""
    model = AlbertForPreTraining(config).to(batch.input_ids.device).train()
    model.compute_dtype = dtype
    objective, optimizer = PretrainingObjective(model), make_optimizer("adamw", model.named_parameters(), 1e-4)

    def run() -> None:
        parts = objective.losses(batch).values()
        torch.stack([part.total / max(part.count, 1) for part in parts]).sum().backward()
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run


def _interleaved(runs: dict[str, Run], device: torch.device) -> dict[str, list[float]]:
    """Run everything once a round, after a round that warms up, and return the seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(ROUNDS + 1):
        for name, run in runs.items():
            with torch.inference_mode(name != "train"):
                start = time.perf_counter()
                run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if number:
                seconds[name].append(time.perf_counter() - start)
    return seconds
