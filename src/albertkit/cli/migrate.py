"""albertkit migrate"""

import sys
from pathlib import Path


def swinbert(
    checkout: Path,
    /,
    *,
    diff: bool = False,
    apply: bool = False,
    revert: bool = False,
    check: bool = False,
    portable: bool = False,
    force: bool = False,
    json: bool = False,
) -> int:
    """Put ALBERT into BERT's place in a checkout of SwinBERT. Without an action: show what would change, and write nothing.

    Tokens of the two task scripts are replaced, and files are added: `src/layers/albert`, `src/modeling/load_albert.py`, a
    configuration beside each of SwinBERT's, and the guide ALBERT.md. `src/layers/bert` is never touched.

    Args:
        checkout: Folder with `src/tasks/run_caption_VidSwinBert.py`.
        diff: Show the changes as a unified diff. The default.
        apply: Make them. Twice is the same as once; interrupted, the same command goes on.
        revert: Give every file its original bytes again.
        check: Exit with status 1 if there is anything left to apply.
        portable: Also let SwinBERT run on any device and start without apex, deepspeed, fairscale and azureml.
        force: Go on where a file is not as in SwinBERT, is in the way, or was edited since.
        json: Print one JSON object.
    """
    from albertkit.captioning.swinbert.migration.migrate import migrate
    from albertkit.cli.printing import print_result
    from albertkit.errors import ConfigError

    asked = [name for name, on in (("diff", diff), ("apply", apply), ("revert", revert), ("check", check)) if on]
    if len(asked) > 1:
        raise ConfigError("bad-argument", f"--{' and --'.join(asked)} at once", "choose one of them")
    report = migrate(checkout, asked[0] if asked else "diff", portable=portable, force=force)  # type: ignore[arg-type]
    if not json and report.action == "diff":
        _print_diff(report.diff)
    shown = report.to_dict()
    if json:
        print_result(shown, json)
    else:
        for note in shown.pop("notes"):
            print(note, file=sys.stderr)
        if report.action != "diff":
            print_result({name: value for name, value in shown.items() if name != "diff"}, json)
        elif report.migrated:
            print("nothing left to change", file=sys.stderr)
    return 1 if report.action == "check" and not report.migrated else 0


def swinbert_checkpoint(
    source: Path,
    out: Path,
    /,
    *,
    config: Path | None = None,
    tokenizer: Path | None = None,
    to_swinbert: bool = False,
    json: bool = False,
) -> None:
    """Convert a trained SwinBERT to a captioner, for caption predict, evaluate and train; or a captioner back.

    Both of Microsoft's code (BERT) and of a migrated checkout (ALBERT). Every tensor is kept to the bit, Video Swin, `fc` and a
    learned mask among them, and read again. A BERT's layers keep weights of their own, so nothing is saved by it.

    Args:
        source: Folder `checkpoint-…-…` of a SwinBERT training, its model.bin, or a safetensors file of the same names; with
            --to-swinbert a captioner.
        out: Folder to write. It appears whole or not at all.
        config: The text model's config.json. Default: beside the weights, or where log/args.json says; else, of a BERT, what
            shapes say.
        tokenizer: Folder of the tokenizer. Default: beside the weights, where SwinBERT's training saved it, or where
            log/args.json says.
        to_swinbert: The other way: write checkpoint/model.bin, log/args.json, tokenizer/ and model/ for SwinBERT's scripts.
        json: Print the report as one JSON object.
    """
    from albertkit.captioning.swinbert.checkpoint import convert_swinbert
    from albertkit.captioning.swinbert.writing import write_swinbert
    from albertkit.cli.printing import print_result
    from albertkit.errors import ConfigError

    if to_swinbert and (config or tokenizer):
        raise ConfigError(
            "bad-argument", "--to-swinbert takes configuration and tokenizer from the captioner",
            "leave --config and --tokenizer out",
        )  # fmt: skip
    if to_swinbert:
        report = write_swinbert(source, out).to_dict()
    else:
        report = convert_swinbert(source, out, config=config, tokenizer=tokenizer).to_dict()
    if json:
        print_result(report, json)
        return
    notes, training = report.pop("notes"), report.pop("training", {})
    if "left_out" in report:
        report["left_out"] = ", ".join(f"{count} {name}" for name, count in report["left_out"].items()) or None
    print_result({**report, "out": out, **training}, json)
    for note in notes:
        print(f"- {note}")


def _print_diff(diff: str) -> None:
    """In colours on a terminal; elsewhere to the byte, for `git apply`."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.syntax import Syntax

        readable = diff.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        Console().print(Syntax(readable, "diff", theme="ansi_dark", background_color="default"))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(diff.encode("utf-8", "surrogateescape"))
