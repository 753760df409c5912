"""Our models inside transformers' Trainer: the loss does not depend on accumulation, checkpoints resume and load."""

from pathlib import Path

import pytest
import torch
import transformers
from small_models import tiny_config
from torch.testing import assert_close

from albertkit.model import (
    AlbertForMaskedLM,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)

CLASSES = [
    AlbertForMaskedLM,
    AlbertForPreTraining,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertForQuestionAnswering,
]


def tiny(model_class):
    torch.manual_seed(0)
    return model_class(tiny_config(num_hidden_layers=2, classifier_dropout_prob=0.0, num_labels=3))


def examples(model_class):
    """Padded rows; where tokens have labels, not equally many in each, except where order labels are there as well."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for number in range(16):
        ids = torch.randint(5, 90, (12,), generator=generator)
        mask = torch.arange(12) < 5 + number % 8
        row = {"input_ids": ids, "attention_mask": mask.long()}
        if model_class is AlbertForPreTraining:
            row["labels"] = torch.where(torch.arange(12) % 3 == 1, ids, -100) * mask - 100 * ~mask
            row["labels"][5:] = -100
            row["sentence_order_label"] = torch.tensor(number % 2)
        elif model_class in (AlbertForMaskedLM, AlbertForTokenClassification):
            row["labels"] = torch.where(
                mask & (torch.arange(12) % (1 + number % 4) == 0), ids % 3, -100
            )
        elif model_class is AlbertForQuestionAnswering:
            row |= {"start_positions": torch.tensor(1), "end_positions": torch.tensor(3)}
        else:
            row["labels"] = torch.tensor(number % 3)
        rows.append(row)
    return rows


def trainer_for(model, out, batch=4, accumulation=1, **options):
    """Plain gradient descent, four rows an update, so that the parameters show the gradients."""
    values = {
        "learning_rate": 0.2,
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "max_steps": 2,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    arguments = transformers.TrainingArguments(
        str(out),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        **{**values, **options},
    )
    data = examples(type(model))
    return transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data)


@pytest.mark.parametrize("model_class", CLASSES)
def test_four_accumulated_batches_are_one(tmp_path, model_class):
    runs = []
    for batch, accumulation in ((4, 1), (1, 4)):
        model = tiny(model_class)
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        trainer = trainer_for(model, tmp_path, batch, accumulation)
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        runs.append(
            (torch.tensor(losses), {name: p.detach() for name, p in model.named_parameters()})
        )
    assert_close(runs[0], runs[1], atol=1e-6, rtol=1e-6)
    assert len(runs[0][0]) == 2
    assert max((runs[0][1][name] - value).abs().max() for name, value in before.items()) > 1e-3


def test_evaluation_and_prediction_return_what_the_model_does(tmp_path):
    model = tiny(AlbertForMaskedLM)
    trainer = trainer_for(model, tmp_path, per_device_eval_batch_size=4)
    data = trainer.eval_dataset
    batch = {name: torch.stack([row[name] for row in data]) for name in data[0]}
    expected = model.eval()(**batch)
    predicted = trainer.predict(data)
    assert_close(
        torch.from_numpy(predicted.predictions), expected.logits.detach(), atol=1e-6, rtol=0
    )
    unlabelled = trainer.predict(
        [{name: row[name] for name in ("input_ids", "attention_mask")} for row in data]
    )
    assert_close(
        torch.from_numpy(unlabelled.predictions), expected.logits.detach(), atol=1e-6, rtol=0
    )
    assert trainer.evaluate()["eval_loss"] > 0


@pytest.mark.parametrize("model_class", [AlbertForPreTraining, AlbertForSequenceClassification])
def test_checkpoints_resume_and_load(tmp_path, model_class):
    """The Trainer writes weights; what makes a folder of them is `save_pretrained`, here after each of its checkpoints."""

    class WholeFolders(transformers.TrainerCallback):
        def on_save(self, args, state, control, model, **_):
            model.save_pretrained(Path(args.output_dir) / f"checkpoint-{state.global_step}")

    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    trainer = trainer_for(tiny(model_class), tmp_path, **options)
    trainer.add_callback(WholeFolders())
    trainer.train()
    finished = dict(trainer.model.named_parameters())

    resumed = trainer_for(tiny(model_class), tmp_path, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for name, parameter in resumed.model.named_parameters():
        assert_close(parameter, finished[name], atol=1e-6, rtol=0)

    for folder in (tmp_path / "checkpoint-4", tmp_path / "final"):
        if folder.name == "final":
            trainer.model.save_pretrained(folder)
        loaded = model_class.from_pretrained(folder)
        for name, parameter in loaded.named_parameters():
            assert torch.equal(parameter, finished[name]), name


def test_the_trainers_own_mixed_precision(tmp_path):
    losses = []
    for bf16 in (False, True):
        trainer = trainer_for(tiny(AlbertForPreTraining), tmp_path, bf16=bf16, learning_rate=0.1)
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[1] != losses[0]
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)


def test_checkpointing_asked_of_the_trainer_changes_nothing(tmp_path):
    parameters = []
    for on in (False, True):
        model = tiny(AlbertForTokenClassification)
        trainer_for(model, tmp_path, activation_checkpointing=on).train()
        assert model.is_gradient_checkpointing == on
        parameters.append(
            {name: parameter.detach() for name, parameter in model.named_parameters()}
        )
    assert_close(parameters[0], parameters[1], atol=1e-6, rtol=1e-5)
