"""Does a faster form of a model still say the same? Asked before anything is saved or served in int8.

Source of the worry: ALBERT in int8 with one scale a tensor fell from F1 0.8 to 0.05 (onnxruntime issue 11701).
"""

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from albertkit.checkpoints.classes import load_model
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.folder import is_encoder_folder
from albertkit.engines import load_engine, on_engine
from albertkit.engines.engine import Precision
from albertkit.engines.onnx_model import REPORT, is_onnx_folder, load_onnx, tokenizer_of
from albertkit.errors import CheckpointError
from albertkit.files import read_json
from albertkit.inference.forms import answer_task, compare, outputs_of
from albertkit.inference.sample import sample_batches
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.model_folder import local_folder

MOST_LOSS = 0.5  # points of the task's metric
LEAST_COSINE = 0.99  # mean over tokens, where there are no labels to ask
LEAST_TOP1 = 0.97


@dataclass(frozen=True)
class Agreement:
    """How a form of a model compares with the model in fp32.

    Attributes:
        precision: Of the form.
        source: What was read: a file, or the built-in sample.
        texts: How many.
        cosine_mean: Of tokens' last states, or of the outputs' logits where there are no states.
        cosine_min: The worst token's.
        top1: Share of the head's first choices that are the same: masked pieces, labels, tags, answers; None without a head.
        metric: Of the task, where labels were given.
        reference: Its value in fp32, in points.
        found: In this form, in points.
        notes: What the engine fell back from.
    """

    precision: str
    source: str
    texts: int
    cosine_mean: float
    cosine_min: float
    top1: float | None = None
    metric: str | None = None
    reference: float | None = None
    found: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def loss(self) -> float | None:
        """Points that the metric loses; negative if it gains."""
        return None if self.reference is None or self.found is None else self.reference - self.found

    @property
    def problems(self) -> list[str]:
        """Why it should not be used; empty if it may."""
        if self.loss is not None:
            if not math.isfinite(self.loss):
                return [f"{self.metric} is {self.found}, in fp32 {self.reference}"]
            too_much = f"{self.metric} falls by {self.loss:.2f} points, allowed are {MOST_LOSS}"
            return [too_much] if self.loss > MOST_LOSS else []
        found = [f"mean cosine {self.cosine_mean:.4f}, wanted {LEAST_COSINE}"] * (self.cosine_mean < LEAST_COSINE)
        if self.top1 is not None and self.top1 < LEAST_TOP1:
            found.append(f"{self.top1:.1%} of the first choices are the same, wanted {LEAST_TOP1:.0%}")
        return found

    def lines(self) -> dict[str, Any]:
        """What a person reads, name to text; without `problems` and `notes`."""
        shown = {
            "compared on": f"{self.source}, {self.texts:,} texts",
            "cosine": f"{self.cosine_mean:.5f} on average, {self.cosine_min:.5f} at worst",
        }
        if self.top1 is not None:
            shown["same choice"] = f"{self.top1:.1%}"
        if self.metric is not None:
            shown[self.metric] = f"{self.found:.2f}, in fp32 {self.reference:.2f}"
        return shown

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "loss": self.loss, "problems": self.problems}

    def require(self, force: bool, remedy: str) -> None:
        """Refuse, unless forced.

        Args:
            force: Take the model as it is.
            remedy: What the command has to offer instead, for the hint.

        Raises:
            CheckpointError: low-agreement.
        """
        if self.problems and not force:
            raise CheckpointError(
                "low-agreement", f"in {self.precision} the model is no longer the same: {'; '.join(self.problems)}",
                f"{remedy}, or take it as it is with --force",
            )  # fmt: skip


def check_agreement(
    model: str | Path, data: str | Path | None = None, *, precision: Precision = "int8", split: str = "dev"
) -> Agreement:
    """Compare an engine with fp32.

    Args:
        model: A checkpoint folder or a run; or an ONNX folder, which is compared with the folder it was exported from.
        data: Labelled examples of the model's task: a file, or a folder in its layout. Default: a built-in sample of text.
        precision: Of the engine.
        split: Which file of a folder.

    Raises:
        CheckpointError: no-task if there are examples and no task. DataError: what reading raises. And what loading raises.
    """
    folder = local_folder(model)
    if is_onnx_folder(folder):
        return _exported_agreement(folder, data, split)
    loaded = SentenceEncoder.from_pretrained(folder).albert if is_encoder_folder(folder) else load_model(folder)
    engine = load_engine(loaded, precision)
    form = on_engine(loaded, engine)
    found = agreement_of(folder, loaded, form, engine.precision, data, split)
    return replace(found, notes=engine.notes)


def _exported_agreement(folder: Path, data: str | Path | None, split: str) -> Agreement:
    """Compare an exported model with the folder that it was exported from, which its report names."""
    report = read_json(folder / REPORT, "report of the export") if (folder / REPORT).exists() else {}
    source = report.get("source")
    if not source or not Path(source).is_dir():
        raise CheckpointError(
            "no-weights", f"`{folder}` is an exported model, and the folder that it was exported from is not there: "
            f"{f'`{source}`' if source else f'there is no {REPORT}'}",
            f"{REPORT} has the comparison that was made then; name the model's own folder to compare an engine",
        )  # fmt: skip
    origin, form = local_folder(source), load_onnx(folder)
    encoder = is_encoder_folder(origin)
    model = SentenceEncoder.from_pretrained(origin) if encoder else load_model(origin)
    found = agreement_of(origin, model, form, form.precision, data, split)
    return replace(found, notes=(f"{folder} was compared with {origin}, which it was exported from",))


def agreement_of(
    folder: Path,
    model: PretrainedAlbert | SentenceEncoder,
    form: PretrainedAlbert,
    precision: str,
    data: str | Path | None,
    split: str = "dev",
) -> Agreement:
    """Compare any form of a model with the model: on labelled examples, or on a sample of text.

    Args:
        folder: Where the model's tokenizer and task are.
        model: In fp32.
        form: Another form of it.
        precision: Of the form.
        data: As `check_agreement`.
        split: As there.

    Raises:
        CheckpointError: no-task. DataError: what reading raises.
    """
    if data is None:
        batches, source = sample_batches(tokenizer_of(folder), model.config)
        outputs = ([outputs_of(one, batch) for batch in batches] for one in (model, form))
        return Agreement(precision, source, sum(batch.num_sequences for batch in batches), *compare(*outputs))
    if isinstance(model, SentenceEncoder):
        raise CheckpointError("no-task", f"`{folder}` makes vectors: there is no task to score", "leave --data out")
    answers = answer_task(folder, [model, form], Path(data), split)
    likeness = compare(*([outputs_of(one, batch) for batch in answers.batches] for one in (model, form)))
    return Agreement(
        precision, answers.source, answers.texts, likeness.cosine_mean, likeness.cosine_min, answers.same, answers.metric,
        answers.points[0], answers.points[1],
    )  # fmt: skip
