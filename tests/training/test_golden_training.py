"""Eight updates of a whole model, from one of Google's checkpoints to the next, moments included."""

import numpy as np
import torch

from albertkit.config import AlbertConfig
from albertkit.conversion import names
from albertkit.conversion.tensorflow.bundle import TensorBundle
from albertkit.model import AlbertForPreTraining, PackedBatch
from albertkit.training.loop import learning_rate
from albertkit.training.optimizers import clip_gradients, make_optimizer

SLOTS = {"m": "adam_m", "v": "adam_v"}
# The README's tolerances: 1e-4 for losses and weights, what the worst of them, the key bias,
# leaves; moments are closer.
TOLERANCE = {"loss": 1e-4, "norm": 1e-4, "weight": 1e-4, "m": 1e-6, "v": 1e-6}


def read_tensor(bundle, name, slot=""):
    """A parameter of ours, or one of its moments, from Google's checkpoint."""
    variable, layout = names.tf1_variable_name_and_layout(name)
    values = bundle.read("/".join(filter(None, (variable, slot))))
    return torch.from_numpy(np.array(names.from_tensorflow(values, layout)))


def read_batch(folder):
    """The batch of every update; a weight of 0 marks predictions that pad."""
    arrays = {
        name: torch.from_numpy(array).long()
        for name, array in np.load(folder / "inputs.npz").items()
    }
    labels = torch.full_like(arrays["input_ids"], -100)
    rows, columns = arrays["masked_lm_weights"].nonzero(as_tuple=True)
    labels[rows, arrays["masked_lm_positions"][rows, columns]] = arrays["masked_lm_ids"][
        rows, columns
    ]
    return PackedBatch.from_padded(
        arrays["input_ids"],
        arrays["input_mask"],
        arrays["segment_ids"],
        labels=labels,
        sentence_order_labels=arrays["next_sentence_labels"][:, 0],
    )


def train(folder):
    """Train from `start`; the largest deviation of losses, norms before clipping, final weights and moments."""
    start = TensorBundle.open(folder / "start")
    end = TensorBundle.open(folder)
    expected = np.load(folder / "outputs.npz")
    model = AlbertForPreTraining(AlbertConfig.from_pretrained(folder)).train()
    parameters = dict(model.named_parameters())
    trained = {name for name in start.names if not names.optimizer_slot(name)}
    assert trained == {names.tf1_variable_name_and_layout(name)[0] for name in parameters}
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(read_tensor(start, name))
    optimizer = make_optimizer("lamb", parameters.items(), lr=0.0)
    batch = read_batch(folder)
    worst = dict.fromkeys(TOLERANCE, 0.0)

    def compare(kind, ours, theirs):
        worst[kind] = max(worst[kind], (ours.detach() - theirs).abs().max().item())

    for step in range(8):
        losses = model.pretraining_losses(batch)
        masked = losses.masked_lm.loss_sum / losses.masked_lm.label_count
        loss = masked + losses.sentence_order.loss_sum / losses.sentence_order.label_count
        loss.backward()
        compare("loss", loss, torch.tensor(expected["train_losses"][step]))
        norm = clip_gradients(parameters.values(), 1.0)
        compare("norm", torch.tensor(norm), torch.tensor(expected["train_grad_global_norm"][step]))
        optimizer.set_learning_rate(learning_rate(step, peak=0.02, total_steps=20, warmup_steps=3))
        optimizer.step()
        optimizer.zero_grad()
    for name, parameter in parameters.items():
        compare("weight", parameter, read_tensor(end, name))
        for slot, theirs in SLOTS.items():
            compare(slot, optimizer.state[parameter][slot], read_tensor(end, name, theirs))
    return worst


def test_eight_updates_end_at_googles_checkpoint(golden):
    worst = train(golden / "tf1/pretrain_a")
    assert all(worst[kind] < TOLERANCE[kind] for kind in TOLERANCE), worst
