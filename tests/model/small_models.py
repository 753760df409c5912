"""What several tests of models use: the classes, small random ones, batches of any lengths, gradients by name."""

import torch

from albertkit.config import AlbertConfig
from albertkit.model import (
    AlbertForBeamQuestionAnswering,
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertModel,
    PackedBatch,
)

WITH_HEADS = [
    AlbertForPreTraining, AlbertForMaskedLM, AlbertForSequenceClassification, AlbertForTokenClassification,
    AlbertForQuestionAnswering, AlbertForMultipleChoice, AlbertForBeamQuestionAnswering,
]  # fmt: skip
CLASSES = [AlbertModel, *WITH_HEADS]


TINY = dict(
    vocab_size=90,
    embedding_size=16,
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=96,
    max_position_embeddings=24,
)


def tiny_config(**changes):
    """Two heads of 32, three layers, 90 tokens."""
    return AlbertConfig.from_dict({**TINY, **changes})


def shaken(model, scale=0.2):
    """The model in evaluation mode, every parameter random, so that none can be swapped or left out unnoticed."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def padded_inputs(vocab_size=90):
    """Three padded rows of 20, 7 and 13 tokens."""
    generator = torch.Generator().manual_seed(2)
    mask = torch.arange(20) < torch.tensor([20, 7, 13])[:, None]
    return {
        "input_ids": torch.randint(5, vocab_size, (3, 20), generator=generator) * mask,
        "attention_mask": mask.long(),
        "token_type_ids": torch.randint(0, 2, (3, 20), generator=generator) * mask,
    }


def sequences(lengths):
    """Sequences of these lengths with both kinds of labels."""
    ids = [[(7 * n + index) % 85 + 5 for index in range(n)] for n in lengths]
    masked = [[0] if n < 4 else [1, 3] for n in lengths]
    labels = [[n % 90] * len(positions) for n, positions in zip(lengths, masked, strict=True)]
    return PackedBatch.from_sequences(ids, None, masked, labels, [n % 2 for n in lengths])


def gradients(model, loss):
    """The gradient of each parameter that has one."""
    model.zero_grad()
    loss.backward()
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
