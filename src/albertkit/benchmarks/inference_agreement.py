"""What rows of inference share: our engines, the machine's peak, everybody's agreement with transformers in fp32."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from albertkit.benchmarks.harness import Contender, versions
from albertkit.benchmarks.inference_peers import INSTALL, IdleMeter, Peers
from albertkit.config import AlbertConfig
from albertkit.engines import Engine, load_engine
from albertkit.engines.engine import Precision
from albertkit.errors import DataError
from albertkit.model import AlbertModel

REFERENCE = "transformers fp32"
PRECISIONS: tuple[Precision, ...] = ("int8", "bf16", "fp32")
MATMUL = 2048  # width of the square product that measures the peak
LARGEST_DIFFERENCE = 1e-4  # of a state in fp32 to transformers'
LOWEST_COSINE = {"bf16": 0.999, "int8": 0.995}  # of a token's state to transformers' in fp32


def make_engines(config: AlbertConfig) -> tuple[AlbertModel, dict[Precision, Engine]]:
    """A model with random weights and no pooler, and its engines by what they compute in."""
    torch.manual_seed(0)
    model = AlbertModel(config, add_pooling_layer=False).eval()
    engines: dict[Precision, Engine] = {}
    for precision in PRECISIONS:
        engine = load_engine(model, precision)
        engines.setdefault(engine.precision, engine)
    return model, engines


def peak_contenders(precisions: Sequence[Precision]) -> dict[Precision, Contender]:
    """The machine's peak in GFLOP/s (integers: GOP/s) in those precisions that have packed weights here."""
    from albertkit.engines.operators import Bf16Linear, Int8Linear, QuantizedRows, lacking

    rows, weight, bias = torch.randn(MATMUL, MATMUL), torch.randn(MATMUL, MATMUL), torch.zeros(MATMUL)
    runs: dict[Precision, Callable[[], Any]] = {}
    if "int8" in precisions and not lacking("int8"):
        quantized = QuantizedRows(torch.randint(0, 256, (MATMUL, MATMUL), dtype=torch.uint8), torch.ones(MATMUL), 128)
        runs["int8"] = partial(Int8Linear(weight, bias).multiply, quantized)
    if "bf16" in precisions and not lacking("bf16"):
        runs["bf16"] = partial(Bf16Linear(weight, bias).values, rows.to(torch.bfloat16))
    if "fp32" in precisions:
        runs["fp32"] = _fp32_product(rows, weight, bias)
    gflop = 2 * MATMUL**3 / 1e9
    return {name: Contender(f"peak {name}", partial(_quietly, run), gflop) for name, run in runs.items()}


def _fp32_product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Callable[[], Any]:
    """oneDNN's product: torch's own goes through MKL, which on AMD reaches less than half of it."""
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        run = partial(torch.ops.mkldnn._linear_pointwise, rows, packed, bias, "none", [], "")
        run()
        return run
    except (AttributeError, RuntimeError, TypeError):  # private, and not in every torch
        return partial(nn.functional.linear, rows, weight, bias)


@torch.inference_mode()
def _quietly(run: Callable[[], Any]) -> None:
    run()


def agreement(states: np.ndarray, reference: np.ndarray) -> dict[str, float]:
    """How like transformers' in fp32 the states [..., H] are: cosines over states, the largest difference of a number.

    Raises:
        DataError: peer-failed, if the shapes differ.
    """
    if states.shape != reference.shape:
        raise DataError(
            "peer-failed", f"states of shape {states.shape} beside {reference.shape} of {REFERENCE}", INSTALL
        )
    with np.errstate(invalid="ignore", divide="ignore"):
        lengths = np.linalg.norm(states, axis=-1) * np.linalg.norm(reference, axis=-1)
        cosines = (states * reference).sum(-1) / lengths
    return {
        "lowest_cosine": float(cosines.min()), "mean_cosine": float(cosines.mean()),
        "largest_difference": float(np.abs(states - reference).max()),
    }  # fmt: skip


def agrees(precision: Precision, found: dict[str, float]) -> bool:
    """Whether an agreement is within the bound of a precision."""
    if precision == "fp32":
        return found["largest_difference"] <= LARGEST_DIFFERENCE
    return found["lowest_cosine"] >= LOWEST_COSINE[precision]


def agreements_of(
    ours: dict[Precision, Callable[[], np.ndarray]], theirs: dict[str, np.ndarray]
) -> dict[str, dict[str, float]]:
    """Everybody's agreement with transformers in fp32, the first of several; where it is not there, with our own fp32."""
    everybody = {**{f"albertkit {name}": run() for name, run in ours.items()}, **theirs}
    reference = next((states for name, states in theirs.items() if name.startswith(REFERENCE)), None)
    reference = everybody.get("albertkit fp32") if reference is None else reference
    return {} if reference is None else {name: agreement(states, reference) for name, states in everybody.items()}


def judged(precision: Precision, agreements: dict[str, dict[str, float]], peers: Peers) -> dict[str, Any]:
    """`equal`, `compared`, `missing` and `versions` of a row."""
    found = agreements.get(f"albertkit {precision}")
    alone = REFERENCE not in peers.ready
    equal, compared = None, ""
    if found and not (alone and precision == "fp32"):
        equal = agrees(precision, found)
        limit = f"within {LARGEST_DIFFERENCE:g}" if precision == "fp32" else f"at least {LOWEST_COSINE[precision]}"
        measure = (
            f"largest difference {found['largest_difference']:.2g}"
            if precision == "fp32"
            else f"lowest cosine {found['lowest_cosine']:.5f}"
        )
        whose = "our own fp32" if alone else REFERENCE
        compared = f"our states with those of {whose} in this run: {measure}, wanted {limit}; everybody's in details"
    own = versions("torch", "numba", "sentencepiece")
    return {
        "equal": equal, "compared": compared, "missing": peers.failed, "versions": {**own, **peers.versions},
    }  # fmt: skip


def details_of_all(
    config: AlbertConfig,
    agreements: dict[str, dict[str, float]],
    peers: Peers,
    meter: IdleMeter,
    *works: str,
) -> dict[str, Any]:
    """What every row of a measurement shows."""
    wanted = config.num_hidden_layers * 6 + 1  # which a peer's int8 must have converted
    return {
        "threads": {"ours": torch.get_num_threads(), **peers.threads},
        "processor_time_of_those_who_wait": meter.shares(),
        "agreement": agreements,
        "products": {"linear_layers": wanted, **peers.notes("products")},
        "peers_settings": {
            name: {work: trials[work] for work in works} for name, trials in peers.notes("trials").items()
        },
    }
