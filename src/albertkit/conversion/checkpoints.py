"""Find which kind of checkpoint a path holds, and read it.

TensorFlow checkpoints, SavedModels and TF-Hub modules, folders of transformers of every year, BERT
folders, npz files. What the years changed in transformers' files of ALBERT (`model.safetensors` or
`pytorch_model.bin`, in one file or several):

- `LayerNorm.gamma` and `.beta` became `.weight` and `.bias` (2018), and wrappers' names may lead, see `transformers_names`;
- `embeddings.position_ids` and `token_type_ids` were stored (transformers 3.1 to 4.30), though they count 0, 1, 2, …;
- `predictions.decoder.weight` and `.bias` are second copies of other tensors, stored until safetensors refused to (2023);
- `AlbertForMaskedLM` and others that have no use for the pooler stored it all the same (before transformers 4.0).
"""

import base64
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from albertkit.config import make_config_with_notes
from albertkit.conversion import bert, names, tensorflow_weights
from albertkit.conversion.classes import SourceModel
from albertkit.errors import (
    AlbertKitError,
    CheckpointError,
    DataError,
    MachineError,
    MissingExtraError,
    first_line,
    format_list,
    requires_package,
)
from albertkit.files import cache_folder, read_typed, sha256_bytes, sha256_file, write_json
from albertkit.model.classes import TIED
from albertkit.model.files import (
    HEADS,
    PREFIX,
    check_decoder_is_tied,
    read_tensors,
)
from albertkit.model_paths import (
    WEIGHTS_FILES,
    file_system_and_path,
    find_weights,
    inner_model_hint,
    is_remote,
    local_folder,
    network_errors_as_ours,
)
from albertkit.output.progress import ProgressBar, quiet_transformers
from albertkit.weights_file import BUFFERS, unread_weights_hint

_DOWNLOADED_ARCHIVE = re.compile(r"\.(tar|tar\.gz|tgz|npz)$")
_TFHUB = re.compile(r"https?://(?:www\.)?(?:tfhub\.dev|tfhub\.google\.cn)/([^?#]+?)/?(?:\?[^#]*)?$")
_BUCKET = re.compile(r"(?:gs|gcs)://(.+)$")
_MD5 = re.compile(r"[0-9a-f]{32}")
_MD5_STORAGE = re.compile(r"storage\.googleapis\.com|amazonaws\.com|^s3")  # an MD5 is its ETag
_RECORD = "download.json"
# Files of a folder that are a model's or its tokenizer's, not a training's.
_WEIGHTS = ("*.index", "*.safetensors", "pytorch_model*.bin", "*.npz")
_FOLDER_FILES = (
    *_WEIGHTS,
    "*.data-*",
    "saved_model.pb",
    "*.json",
    "*.model",
    "*vocab*",
    "README.md",
)
# Bytes asked for at a time, and the most that an interruption loses: fsspec's http files read 5 MiB
# ahead, and lose all of that when the connection is cut.
_STEP = 8 << 20


OUR_TYPES = ("albert", "bert")  # by `model_type`: models that are opened as an ALBERT


# Of a network's layers, unlike those of a head
_OF_LAYER = re.compile(r"\blayers?\.\d+\.")


@dataclass(frozen=True)
class TransformersFolder:
    """A model of any other type, which classes of transformers read; what they raise becomes an error about the subject."""

    folder: Path
    subject: str

    def load(self, class_name: str, **options: Any) -> Any:
        """Return what a class makes of the folder; no program in it is run."""
        with requires_package("transformers", "embed", self.subject):
            import transformers
        try:
            with quiet_transformers():
                return getattr(transformers, class_name).from_pretrained(
                    self.folder, local_files_only=True, trust_remote_code=False, **options
                )
        except Exception as error:  # of transformers or torch: they share no base class
            if "trust_remote_code" in str(error):
                raise CheckpointError(
                    "unsupported",
                    f"{self.subject} brings a program of its own (`auto_map`), which is not run",
                    "name a model of a class that transformers has",
                ) from None
            raise CheckpointError(
                "wrong-kind",
                f"transformers cannot read {self.subject}: {type(error).__name__}: {first_line(error)}",
                "give the folder of a whole model, with config.json, weights and tokenizer",
            ) from None

    def load_network_and_missing_names(
        self, class_name: str, **options: Any
    ) -> tuple[Any, set[str]]:
        """Return a network in fp32, and the names of its parameters that the folder lacks, which are drawn."""
        network, info = self.load(
            class_name, dtype=torch.float32, output_loading_info=True, **options
        )
        # transformers leaves out what its class does not have, such as the layers beyond those of
        # the configuration.
        if unread := sorted(filter(_OF_LAYER.search, info["unexpected_keys"])):
            raise CheckpointError(
                "weights-mismatch",
                f"{self.subject} has weights that no {type(network).__name__} of its config.json has: {format_list(unread, 5)}",
                "put back the config.json that it was saved with",
            )
        return network.eval(), set(info["missing_keys"])


def max_positions_of_network(network: Any) -> int:
    """Return how many tokens a network of transformers reads; 10^30, as its tokenizers have it, where nothing says so."""
    embeddings = getattr(network.base_model, "embeddings", None)
    table = getattr(embeddings, "position_embeddings", None)
    if table is None:
        return getattr(network.config, "max_position_embeddings", 10**30)
    # RoBERTa's first rows are of no position
    return len(table.weight) - (0 if table.padding_idx is None else table.padding_idx + 1)


@dataclass(frozen=True)
class _Download:
    """Record of a download.

    Attributes:
        url: The address.
        same: What the server said of the file: another version differs in it.
        size: Bytes that arrived, once it is whole.
        sha256: Their sum.
        date: Day of the download.
    """

    url: str
    same: dict[str, str] = field(default_factory=dict)
    size: int = 0
    sha256: str = ""
    date: str = ""


def fetch_model_and_describe(address: str) -> tuple[Path, str]:
    """Return the local copy of what an address names, and a line about it: an archive, a folder, or a checkpoint in one."""
    plain = address.partition("#")[0]
    if (
        plain.startswith(("http://", "https://"))
        or "#" in address
        or _DOWNLOADED_ARCHIVE.search(plain)
    ):
        return fetch_archive_and_describe(address)
    # A folder; of a checkpoint in one, named by its prefix, its own files and those of no
    # checkpoint.
    address = plain.rstrip("/")
    system, path = file_system_and_path(address)
    with network_errors_as_ours(address):
        is_folder = system.isdir(path)
        parent, _, prefix = (path, "", "") if is_folder else path.rpartition("/")
        names = sorted(
            file.removeprefix(parent).lstrip("/") for file in system.find(parent, maxdepth=2)
        )
    checkpoints = [name.removesuffix(".index") for name in names if name.endswith(".index")]
    if not is_folder and prefix not in checkpoints:
        raise DataError(
            "not-found",
            f"no folder, archive or checkpoint at `{address}`",
            "check the address",
        )
    if is_folder and len(checkpoints) > 1:
        raise CheckpointError(
            "ambiguous",
            f"`{address}` holds several checkpoints: {format_list(checkpoints)}",
            f"name one: {address}/{checkpoints[-1]}",
        )
    other_prefixes = [f"{name}." for name in checkpoints if prefix and name != prefix]
    names = [
        name
        for name in names
        if any(fnmatch(name, pattern) for pattern in _FOLDER_FILES)
        and not name.startswith(tuple(other_prefixes))
    ]
    if not any(fnmatch(name, pattern) for name in names for pattern in _WEIGHTS):
        raise CheckpointError(
            "wrong-kind",
            f"`{address}` holds no weights of a model (there: {format_list(names, 12) or 'nothing'})",
            "give the folder of a checkpoint, its vocabulary and its configuration",
        )
    url = system.unstrip_protocol(parent).rstrip("/")
    folder = (
        cache_folder()
        / "models"
        / f"{Path(parent).name}-{sha256_bytes(url.encode())[:16]}"
        / (prefix or "all")
    )
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        for name in names:
            _fetch_file_and_describe(
                f"{url}/{name}",
                folder,
                name,
                folder / ".records" / f"{name}.json",
                is_archive=False,
            )
        size = sum((folder / name).stat().st_size for name in names)
    return (
        folder / prefix,
        f"fetched {len(names)} files of `{address}`, {size / 1e6:,.1f} MB: {format_list(names, 12)}",
    )


def fetch_archive_and_describe(address: str) -> tuple[Path, str]:
    """Return the local copy of a published archive, and a line about it."""
    plain, _, fragment = address.partition("#")
    expected_sha256 = ""
    if fragment:
        match = re.fullmatch(r"sha256=([0-9a-fA-F]{64})", fragment)
        if not match:
            raise DataError(
                "bad-value",
                f"`#{fragment}` in `{address}`",
                "write #sha256= and 64 hexadecimal digits",
            )
        expected_sha256 = match[1].lower()
    url, name = address_and_file_name(plain)
    folder = cache_folder() / "models" / f"{name}-{sha256_bytes(url.encode())[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    # Two processes that want one model download it once.
    with FileLock(f"{folder}.lock"):
        file, note = _fetch_file_and_describe(url, folder, name, folder / _RECORD)
        record = read_typed(folder / _RECORD, _Download)
        if expected_sha256 and record.sha256 != expected_sha256:
            raise CheckpointError(
                "corrupt",
                f"`{plain}` has the sha256 {record.sha256}, not {expected_sha256}",
                f"check the sum; to download again: rm -r {folder}",
            )
    return file, f"{note}, {record.size / 1e6:,.1f} MB, sha256 {record.sha256}"


def _fetch_file_and_describe(
    url: str,
    folder: Path,
    name: str,
    record_path: Path,
    is_archive: bool = True,
) -> tuple[Path, str]:
    """Return the copy of a file, which was fetched before or is now; `record_path` is the file of its record."""
    file = folder / name
    partial = file.with_name(f".partial-{file.name}")
    file.parent.mkdir(parents=True, exist_ok=True)
    record_path.parent.mkdir(parents=True, exist_ok=True)
    record = _Download(url)
    with suppress(AlbertKitError):
        record = read_typed(record_path, _Download)
    is_complete = file.is_file() and record.sha256 == sha256_file(file)
    try:
        system, path = file_system_and_path(url)
        with network_errors_as_ours(url):
            info = system.info(path)
    except (MachineError, MissingExtraError) as error:
        # Without the network a copy that was verified does as well.
        if is_complete and error.slug in ("unreachable", "not-installed"):
            return (
                file,
                f"`{url}` cannot be reached: the copy of {record.date} in `{folder}` was used",
            )
        raise
    keys = ("size", "ETag", "etag", "Last-Modified", "mtime", "md5Hash")
    version = {key: str(info[key]) for key in keys if info.get(key)}
    if is_complete and record.same == version:
        return file, f"`{url}`: the copy in `{folder}` was used"
    if record.same != version:
        partial.unlink(missing_ok=True)  # of another file that lay at this address
    # Before the first byte, so that a killed download goes on with the same version alone.
    write_json(record_path, asdict(_Download(url, version)))
    _download(system, path, url, partial, info.get("size"))
    _check_download(partial, url, info, is_archive)
    os.replace(partial, file)
    write_json(
        record_path,
        asdict(_Download(url, version, file.stat().st_size, sha256_file(file), str(date.today()))),
    )
    return file, f"downloaded `{url}`"


def _download(system: Any, path: str, url: str, partial: Path, size: int | None) -> None:
    """Read a file to its end, from where an earlier attempt stopped if the server can begin there."""
    progress = ProgressBar(
        partial.name.removeprefix(".partial-"),
        size or 0,
        "bytes",
        enabled=sys.stderr.isatty(),
    )
    with network_errors_as_ours(url), open(partial, "ab") as target, progress:
        with system.open(path, "rb", block_size=_STEP) as source:
            num_bytes = target.tell()
            if num_bytes:
                try:
                    source.seek(num_bytes)
                except (ValueError, OSError, NotImplementedError):
                    # A server that has only one beginning.
                    target.truncate(0)
                    num_bytes = 0
            while block := source.read(_STEP):
                target.write(block)
                num_bytes += len(block)
                progress.update(num_bytes, f"{num_bytes / 1e6:,.0f} MB")
        target.flush()
        os.fsync(target.fileno())


def _check_download(file: Path, url: str, info: dict[str, Any], is_archive: bool) -> None:
    """Compare a download with what the server states of it; a broken one is removed."""
    size = file.stat().st_size
    stated_md5 = None  # in hexadecimal digits, as the server or the bucket states it
    for key in ("Content-MD5", "md5Hash"):
        if info.get(key) and stated_md5 is None:
            with suppress(ValueError):
                stated_md5 = base64.b64decode(str(info[key]), validate=True).hex()
    if stated_md5 is None and _MD5_STORAGE.search(url):
        tag = str(info.get("ETag") or "").strip('"').lower()
        stated_md5 = tag if _MD5.fullmatch(tag) else None  # not of a file in several parts
    md5 = stated_md5
    with open(file, "rb") as stream:
        begin = stream.read(512)
        if stated_md5:
            stream.seek(0)
            md5 = hashlib.file_digest(
                stream, lambda: hashlib.md5(usedforsecurity=False)
            ).hexdigest()
    hint = "run the same command again; nothing of the broken file is kept"
    if info.get("size") not in (None, size):
        error = CheckpointError(
            "corrupt",
            f"`{url}`: {size:,} bytes arrived, the server states {info['size']:,}",
            hint,
        )
    elif md5 != stated_md5:
        error = CheckpointError(
            "corrupt",
            f"`{url}`: its MD5 is {md5}, the server states {stated_md5}",
            hint,
        )
    elif is_archive and not (
        begin.startswith((b"\x1f\x8b", b"PK\x03\x04")) or begin[257:262] == b"ustar"
    ):
        kind = f", but {info['mimetype']}" if info.get("mimetype") else ""
        hint = "give the address of a .tar.gz, .tgz, .tar or .npz; or download it with a browser and give the file"
        error = CheckpointError("wrong-kind", f"`{url}` is not an archive{kind}", hint)
    else:
        return
    file.unlink()
    raise error


def address_and_file_name(address: str) -> tuple[str, str]:
    """Return the address to read from, and the name of the file."""
    if module := _TFHUB.match(address):
        return (
            f"https://tfhub.dev/{module[1]}?tf-hub-format=compressed",
            f"{module[1].replace('/', '-')}.tar.gz",
        )
    name = re.sub(r"[^\w.-]", "_", address.partition("?")[0].rstrip("/").rsplit("/", 1)[-1])
    if not _DOWNLOADED_ARCHIVE.search(name):
        raise DataError(
            "bad-value",
            f"`{address}` does not end in .tar.gz, .tgz, .tar or .npz",
            "give the address of an archive, a module of tfhub.dev, or the folder after downloading it",
        )
    if (bucket := _BUCKET.match(address)) and find_spec("gcsfs") is None:
        address = f"https://storage.googleapis.com/{bucket[1]}"
    return address, name


_ARCHIVE = re.compile(r"\.(tar|tar\.gz|tgz)$")
# Any file of a TensorFlow checkpoint stands for all of them.
_BESIDE_INDEX = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


@contextmanager
def open_checkpoint(
    source: str | Path,
    config: str | Path | None = None,
    lossy: bool = False,
) -> Iterator[SourceModel]:
    """Read a model, whatever it is stored as."""
    if is_remote(source):
        path, note = fetch_model_and_describe(str(source))
        with open_checkpoint(path, config, lossy) as model:
            model.notes.append(note)
            yield model
        return
    path = Path(source)
    config_path = None if config is None else Path(config)
    path = local_folder(path) if path.is_dir() else path
    folder = path if path.is_dir() else path.parent
    prefix = _BESIDE_INDEX.sub("", str(path))
    if Path(f"{prefix}.index").is_file():
        yield tensorflow_weights.read_checkpoint(prefix, config_path)
    elif path.is_file() and _ARCHIVE.search(path.name):
        with tensorflow_weights.read_saved_model(path, config_path) as model:
            yield model
    elif path.is_file() and path.suffix == ".npz":
        yield tensorflow_weights.read_npz(path, config_path)
    elif path.is_dir() and (path / tensorflow_weights.NPZ).is_file():
        yield tensorflow_weights.read_npz(path / tensorflow_weights.NPZ, config_path)
    elif find_weights(folder) and (path.is_dir() or path.name in WEIGHTS_FILES):
        yield _read_transformers_folder(folder, config_path, lossy)
    elif path.is_dir() and any(
        any(path.glob(pattern)) for pattern in ("*.index", "variables/*.index")
    ):
        with tensorflow_weights.read_saved_model(path, config_path) as model:
            yield model
    elif path.exists():
        file_names = sorted(file.name for file in path.iterdir()) if path.is_dir() else [path.name]
        fact = f"no weights that can be read in `{path}` (there: {format_list(file_names, 12) or 'nothing'})"
        hint = inner_model_hint(path) or unread_weights_hint(file_names)
        usual = "give the folder of a model.safetensors, a pytorch_model.bin, a TensorFlow checkpoint or a SavedModel"
        raise CheckpointError("wrong-kind", fact, hint or usual)
    else:
        yield _read_transformers_folder(local_folder(source), config_path, lossy)


def _read_transformers_folder(folder: Path, config_file: Path | None, lossy: bool) -> SourceModel:
    """Read a folder that transformers wrote, of an ALBERT or of a BERT."""
    stored = read_tensors(folder)
    plain = {name: name.removeprefix(PREFIX) for name in stored}
    is_bert = any(map(bert.is_transformers_bert_layer, plain.values()))
    own_config = folder / "config.json"
    file = own_config if config_file is None or is_bert else config_file
    values = read_typed(file, dict[str, Any], "model configuration")
    config, notes = make_config_with_notes(
        bert.albert_config_from_bert(values) if is_bert else values, file
    )
    source = SourceModel(
        "BERT folder" if is_bert else "transformers folder",
        config,
        {},
        folder,
        notes=notes,
    )
    source.architecture = str(next(iter(values.get("architectures") or ()), ""))
    for name, tensor in stored.items():
        today = bert.grouped_albert_name(plain[name]) if is_bert else plain[name]
        if today in BUFFERS:
            source.skipped["buffer"] += 1
            continue
        full = today if today.split(".")[0] in HEADS else PREFIX + today
        if full in TIED or names.tf1_variable_name_and_layout(full):
            source.add_tensor(full, tensor, name)
        else:
            source.unknown.append(name)
    # A tied tensor stays under one name.
    check_decoder_is_tied(
        source.tensors, source.config.foreign.get("tie_word_embeddings"), str(folder)
    )
    for copy, original in TIED.items():
        copied_tensor = source.tensors.pop(copy, None)
        if copied_tensor is None:
            continue
        source.skipped["tied copy"] += 1
        if not torch.equal(source.tensors.setdefault(original, copied_tensor), copied_tensor):
            raise CheckpointError(
                "weights-mismatch",
                f"{copy} and {original} in `{folder}` differ; in ALBERT they are one tensor",
                "its encoder can be used: open the folder with AutoModel of transformers, and save that",
            )
    if is_bert:
        bert.complete_albert_from_bert(source, config_file, lossy)
    return source
