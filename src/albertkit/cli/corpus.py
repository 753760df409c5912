"""`albertkit corpus`: build a token store, look inside it, write it as masked records."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from albertkit.pretraining.export_settings import ExportSettings


def build(
    inputs: Annotated[list[str], Parameter(consume_multiple=True)],
    /,
    *,
    tokenizer: Path,
    out: str,
    format: str | None = None,
    field: str = "text",
    separator: str = ";$;",
    sentences: str | None = None,
    language: str = "en",
    errors: str = "strict",
    workers: int | None = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Turn text files into a token store. Interrupted, the same command goes on.

    Parameters
    ----------
    inputs
        Files, globs, folders or URLs: plain text (a line is a sentence, a blank line ends a document; say `--sentences split`
        if a line is a paragraph, `--format paragraphs` if it is a document), JSONL, Parquet or WikiExtractor's output, also
        `.gz`, `.xz` and `.zst`.
    tokenizer
        Folder that holds one `*.model`; or a run, whose model has one.
    out
        Folder of the store, or an address (`s3://…`): built below `ALBERTKIT_CACHE` (`~/.cache/albertkit`), then uploaded.
    format
        `text`, `jsonl`, `parquet` or `wiki`; found out for each file if not given. Also `paragraphs` (each line is a document)
        and `pairs` (each line is one whose sentences the separator divides: `A;$;B`).
    field
        JSONL field or Parquet column that holds the text; `a.b`, or `a[].b` of every item of a list (JSONL).
    separator
        Between the sentences of a line of `pairs`; a line without it is passed over, counted and named.
    sentences
        `lines` (a line is a sentence), `split`, or `kiwi` for Korean without full stops (250 times slower; extra `korean`).
        Not given: split in JSONL, Parquet, WikiExtractor's output and paragraphs; lines in pairs and in plain text, whose
        beginning is looked at first: the build stops if its lines are paragraphs.
    language
        Two-letter code, for abbreviations. `en` serves Korean, Chinese and Japanese too.
    errors
        Bytes that are not UTF-8: `strict` stops and says where, `replace` goes on and counts them.
    workers
        Processes that split and encode. Not given: threads of this process on two cores or for less than 100 MB, else one a
        core. With `--engine ray`: parts of the inputs in work at a time; not given, as many as the cluster has cores, and as
        many waiting. The bytes of the store do not depend on it.
    engine
        `local`, this machine; `ray`, all machines of a Ray cluster, which must see the inputs under the same names (extra
        `cluster`, `docs/scale.md`). The bytes of the store do not depend on it.
    address
        `HOST:PORT` of the Ray cluster. Not given: the one this machine is part of, else this machine alone.
    overwrite
        Replace another store in `--out`.
    json
        Print one JSON object, and no progress.
    """
    from albertkit.cli.printing import print_result
    from albertkit.corpus import BuildSettings, build_store

    settings = BuildSettings(format=format, field=field, separator=separator, sentences=sentences, language=language)
    report = build_store(
        inputs, out, tokenizer, settings, errors=errors, workers=workers, overwrite=overwrite, progress=not json,
        engine=engine, address=address,
    )  # fmt: skip
    values = report.to_dict()
    warnings = values["warnings"] if json else values.pop("warnings")
    if not json:
        del values["faults"]  # the first of them are in a warning
        usual = {"engine": "local", "nodes": 1}
        values = {name: value for name, value in values.items() if value and usual.get(name) != value}
    print_result(values, json)
    if not json:
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)


def inspect(
    store: str,
    /,
    *,
    number: Annotated[int, Parameter(name=["--number", "-n"])] = 3,
    seed: int = 0,
    length: int = 128,
    pair_task: Literal["sop", "nsp", "none"] = "sop",
    sop_pairs: Literal["pure", "google"] = "pure",
    json: bool = False,
) -> None:
    """Show masked examples as the model will see them, and what an epoch of them is like.

    Parameters
    ----------
    store
        Folder of the token store, or its address (`s3://…`), fetched once.
    number
        Examples to show.
    seed
        Draws the examples and masks.
    length
        Longest sequence, in tokens.
    pair_task
        `sop` (sentence order), `nsp` (next sentence) or `none` (one segment).
    sop_pairs
        What sentence order does with a lone sentence: `pure` avoids it, `google` adds one of another document.
    json
        Print one JSON object.
    """
    from albertkit.cli.printing import print_result
    from albertkit.corpus import TokenStore
    from albertkit.pretraining.examples import ExampleSettings
    from albertkit.pretraining.inspection import inspect_store, show

    examples = ExampleSettings(max_length=length, pair_task=pair_task, sop_pairs=sop_pairs)
    found = inspect_store(TokenStore.open(store), number, seed, examples)
    if json:
        print_result(found.to_dict(), json)
    else:
        show(found)


def export(
    store: str,
    /,
    *,
    out: Path,
    json: bool = False,
    settings: Annotated[ExportSettings, Parameter(name="*", group="Settings", negative_bool="no-")] = ExportSettings(),  # noqa: B008
) -> None:
    """Write a store as the masked TFRecords that google-research's run_pretraining.py trains on.

    Parameters
    ----------
    store
        Folder of the token store, or its address (`s3://…`), fetched once.
    out
        Folder to make: `records-*.tfrecord`, the tokenizer and `export.json`. After an interruption the same command
        starts it anew.
    json
        Print one JSON object, and no progress.
    """
    from albertkit.cli.printing import print_result
    from albertkit.corpus import TokenStore
    from albertkit.pretraining.export import export_records

    print_result(export_records(TokenStore.open(store), out, settings, progress=not json).to_dict(), json)
