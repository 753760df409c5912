"""A command is a dataclass of options and a function that takes it.

The dataclass is the only place where an option is named, typed and documented: its fields before
`KW_ONLY` are arguments (`out` is `--out`), those after it are flags, its docstring is the help. It
lies in a module that imports no torch, so that `--help` answers in 0.3 s; the function is imported
when the command runs. `--json`, `--config-file` and the exit code belong to this file.

    @dataclass(frozen=True)
    class CountOptions:
        '''Count the lines of a file.

        Attributes:
            file: Text, UTF-8.
            blank: Count blank lines, too.
            longest: Longest line that counts, in characters.
        '''

        file: Path
        _: KW_ONLY
        blank: bool = True
        longest: Positive = 80

    @takes(CountOptions)
    def count_lines(options: CountOptions) -> Counted: ...

    Command("count", "package.options:CountOptions", "package.counting:count_lines")  # a line of
    the table in `albertkit.cli`

In Python the same function is called with the fields of the dataclass: `count_lines("text.txt",
blank=False)`.
"""

import dataclasses
import functools
import gc
import inspect
import json as json_module
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from cyclopts import Parameter

from albertkit.errors import ConfigError, OnError, restore_url, suggest_name
from albertkit.printable import escape_json, print_note
from albertkit.tables.columns import Columns
from albertkit.validation import Positive, field_types, is_of_type, list_wrong_fields

Arguments = ParamSpec("Arguments")
Options = TypeVar("Options")
Output = TypeVar("Output")
AcceptedOptions = TypeVar("AcceptedOptions", contravariant=True)
ReturnedOutput = TypeVar("ReturnedOutput", covariant=True)

SEVERAL = Parameter(consume_multiple=True)  # of a field: `--words a b c`, or all further arguments
_FLATTENED = Parameter(name="*", negative_bool="no-")
_CONFIG_FILE = "TOML, JSON or YAML file of settings, for example the run.toml of another run. Flags override it."
_JSON = "Print the result as one JSON object, and no progress."
# A sentence of a docstring that the command line leaves out; it may go on in the next line.
_ONLY_IN_PYTHON = re.compile(r"\s*In Python also [^.]*\.")
_SILENCE = 1.0  # seconds


@dataclass(frozen=True)
class Command:
    """One line of the table of commands.

    Attributes:
        name: As it is typed, with the name of its group: "corpus build".
        options: `module:Dataclass` of its options; the module imports no torch.
        run: `module:function` that takes them.
        show: `module:function` that prints the result for a reader. Default: the result's own
            sections.
        json: Whether there is `--json`.
    """

    name: str
    options: str
    run: str
    _: KW_ONLY
    show: str | None = None
    json: bool = True

    @property
    def identifier(self) -> str:
        """The name as Python can write it."""
        return self.name.replace(" ", "_").replace("-", "_")

    @property
    def settings(self) -> type | None:
        """The class of the settings that a `--config-file` holds; None if the command has none."""
        return settings_class_of(import_attribute(self.options))

    def make_cli_function(self) -> Callable[..., int]:
        """Make the function that the command line calls, with one parameter for each option."""
        options_class = import_attribute(self.options)
        signature = inspect.Signature(self._signature_parameters(options_class))
        field_names = {field.name for field in dataclasses.fields(options_class)}

        def call(*args: Any, **kwargs: Any) -> int:
            values = signature.bind(*args, **kwargs).arguments
            json = values.pop("json", False)
            # Read by `albertkit.cli.main`, as defaults of the flags
            values.pop("config_file", None)
            if "progress" in field_names:
                values["progress"] = not json
            if "json" in field_names:
                values["json"] = json
            # The log of a service is JSON
            with show_loading_message(self.name) if self.json else nullcontext():
                run = import_attribute(self.run)
            result = run(options_class(**values))
            return present(result, json, import_attribute(self.show) if self.show else None)

        call.__signature__ = signature  # type: ignore[attr-defined]
        # What `--help` shows: the documentation of the class, then of its bases, and our own flags
        documents = [inspect.getdoc(kind) or "" for kind in options_class.__mro__[:-1]]
        summary = documents[0].partition("\nAttributes:\n")[0]
        lines = (
            [f"    config_file: {_CONFIG_FILE}"]
            if settings_class_of(options_class) is not None
            else []
        )
        lines += [f"    json: {_JSON}"] if self.json else []
        undescribed = {field.name for field, _ in _ordered_options(options_class)}
        for document in documents:
            described = re.split(
                r"^    (?=\w)", document.partition("\nAttributes:\n")[2], flags=re.MULTILINE
            )[1:]
            for description in described:
                name = description.partition(":")[0]
                if name in undescribed:  # the class's own description hides that of a base
                    undescribed.remove(name)
                    lines.append(f"    {description.rstrip()}")
        call.__doc__ = f"{summary.strip()}\n\nArgs:\n" + _ONLY_IN_PYTHON.sub("", "\n".join(lines))
        call.__name__ = call.__qualname__ = self.identifier
        return call

    def _signature_parameters(self, options_class: type) -> list[inspect.Parameter]:
        options = _ordered_options(options_class)
        collecting = (
            n
            for n, (field, kind) in enumerate(options)
            if not field.kw_only and SEVERAL in get_args(kind)
        )
        # Takes all further arguments: those before it have no flags, others are flags
        collector = next(collecting, -1)
        parameters = []
        for index, (option_field, kind) in enumerate(options):
            parameter_kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
            if option_field.kw_only or option_field.name == "out" or 0 <= collector < index:
                parameter_kind = inspect.Parameter.KEYWORD_ONLY
            elif index <= collector:
                parameter_kind = inspect.Parameter.POSITIONAL_ONLY
            default = option_field.default
            if option_field.default_factory is not dataclasses.MISSING:
                default = option_field.default_factory()
            if default is dataclasses.MISSING:
                default = inspect.Parameter.empty
            if dataclasses.is_dataclass(kind):  # settings are flags of their own
                kind = Annotated[
                    kind, _FLATTENED, Parameter(group=getattr(kind, "title", "Settings"))
                ]
            elif kind is Any or get_args(kind) == (str, Path):
                kind = str | None if default is None else str
            elif get_args(kind) == (str, Path, NoneType):
                kind = str | None
            parameter = inspect.Parameter(
                option_field.name,
                parameter_kind,
                default=default,
                annotation=kind,
            )
            parameters.append(parameter)
        if settings_class_of(options_class) is not None:
            parameters.append(_keyword_parameter("config_file", Path | None, None))
        if self.json:
            parameters.append(_keyword_parameter("json", bool, False))
        return sorted(parameters, key=lambda parameter: parameter.kind)


class OptionsFunction(Protocol[Arguments, AcceptedOptions, ReturnedOutput]):
    """A function that is called with the fields of a dataclass of options, or with the dataclass itself."""

    @overload
    def __call__(self, options: AcceptedOptions, /) -> ReturnedOutput: ...
    @overload
    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> ReturnedOutput: ...


def takes(
    options: Callable[Arguments, Options],
) -> Callable[[Callable[[Options], Output]], OptionsFunction[Arguments, Options, Output]]:
    """Let a function of one dataclass of options be called with its fields, or with the dataclass itself.

    Type checkers see the dataclass's own signature. `function.takes` is the dataclass. Its fields
    have the types, the choices and the ranges that it names, and a field `seed` is one that torch
    and NumPy both take, or None.
    """

    def wrap(function: Callable[[Options], Output]) -> OptionsFunction[Arguments, Options, Output]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Output:
            is_dataclass = len(args) == 1 and not kwargs and isinstance(args[0], options)  # type: ignore[arg-type]
            values = args[0] if is_dataclass else options(*args, **kwargs)
            check_values(values)
            return function(values)

        returned = inspect.signature(function).return_annotation
        call.__signature__ = inspect.signature(options).replace(return_annotation=returned)  # type: ignore[attr-defined]
        call.takes = options  # type: ignore[attr-defined]
        return cast(OptionsFunction[Arguments, Options, Output], call)

    return wrap


def check_values(options: Any) -> None:
    """Refuse options whose values are not of the types of their fields, in their ranges and among their choices.

    Settings (`settings_class_of`) check themselves, with everything else that is wrong with them.

    Raises:
        ConfigError: unknown-name for a choice that does not exist, else bad-value.
    """
    settings = settings_class_of(type(options))
    problems = list_wrong_fields(options)
    for name, kind in field_types(options).items():
        value = getattr(options, name)
        if (choices := _literal_choices(kind)) and not is_of_type(value, kind):
            raise ConfigError(
                "unknown-name",
                f"{name} cannot be `{value}`",
                suggest_name(str(value), map(str, choices)),
            )
        kinds = (kind, *get_args(kind))
        if (
            Path in kinds
            and str not in kinds
            and value is not None
            and (address := restore_url(value))
        ):
            raise ConfigError(
                "bad-value",
                f"`{address}` is an address: {name} must be a path of this machine",
                "name a path here, and copy the files from or to the address",
            )
        if (
            dataclasses.is_dataclass(kind)
            and kind is not settings
            and dataclasses.is_dataclass(value)
        ):
            problems += [f"{name}: {problem}" for problem in list_wrong_fields(value)]
    if problems:
        raise ConfigError(
            "bad-value",
            "; ".join(problems),
            "change it, or leave it out for its default",
        )


def _literal_choices(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for part in get_args(annotation) for choice in _literal_choices(part)]


def settings_class_of(options_class: type) -> type | None:
    """Return the class of the settings within a command's options class, which a file can hold too; None if it has none."""
    kinds = get_type_hints(options_class).values()
    return next(
        (
            k
            for k in kinds
            if isinstance(k, type) and dataclasses.is_dataclass(k) and hasattr(k, "read")
        ),
        None,
    )


def present(result: Any, json: bool, show: Callable[[Any], None] | None = None) -> int:
    """Print what a command returned and return its exit status.

    Args:
        result: None if the command has printed all itself; else a `Result`.
        json: One JSON object on one line, instead of sections.
        show: Prints the result in place of its sections.
    """
    if result is None:
        return 0
    if json:
        print(escape_json(json_module.dumps(result.to_dict(), default=str, ensure_ascii=False)))
    else:
        if show is not None:
            show(result)
        else:
            from albertkit.output.render import print_sections

            print_sections(result.sections())
        for warning in getattr(result, "warnings", ()):
            print_note(f"warning: {warning}")
    return getattr(result, "exit_status", 0)


@contextmanager
def show_loading_message(command: str) -> Iterator[None]:
    """Print on stderr that a command is loading if that takes longer than `_SILENCE`, as the first time on a cold disk."""
    timer = threading.Timer(_SILENCE, print_note, [f"albertkit {command}: loading"])
    timer.daemon = True
    if os.environ.get("RANK", "0") == "0":  # the first process of a launch
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


# Commands are named by paths, so that `--help` imports neither numpy nor torch and takes 0.15 s.
def import_attribute(path: str) -> Any:
    """Import "module:name"."""
    module, _, name = path.partition(":")
    if module not in sys.modules and gc.isenabled():
        # A million objects, none of them garbage: walking through them again and again took 0.6 of
        # the 3.2 s of `predict`.
        gc.disable()
        try:
            import_module(module)
        finally:
            gc.freeze()
            gc.enable()
    return getattr(import_module(module), name)


def _keyword_parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _ordered_options(options_class: type) -> list[tuple[dataclasses.Field[Any], Any]]:
    """List fields with their types: arguments, then the class's own flags, then those of its bases."""
    hints = get_type_hints(options_class, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(options_class)}
    names = [name for name, field in fields.items() if not field.kw_only]
    for kind in options_class.__mro__:
        names += vars(kind).get("__annotations__", ())
    names_of_options = fields.keys() - {"progress", "json"}  # the frame's own
    return [
        (fields[name], hints[name]) for name in dict.fromkeys(names) if name in names_of_options
    ]


Precision = Literal["auto", "fp32", "bf16", "int8"]


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Options of commands that compute a model.

    Attributes:
        device: Device: auto, cpu, cuda or cuda:N.
    """

    device: str = "auto"


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """Options of commands that compute a model batch by batch.

    Attributes:
        batch_tokens: Maximum tokens per batch.
        precision: Precision: fp32, bf16, int8, or auto: bf16 where the hardware computes it faster.
    """

    batch_tokens: Positive = 8192
    precision: Precision = "auto"


@dataclass(frozen=True, kw_only=True)
class BadRowOptions:
    """Options of commands that read rows of files.

    Attributes:
        on_error: How to treat unusable rows: stop with an error, or skip and list them.
    """

    on_error: OnError = "stop"


@dataclass(frozen=True, kw_only=True)
class TableOptions(BadRowOptions):
    """Options of commands that read tables.

    Attributes:
        columns: Names of the columns of a table, if they are not the usual ones or those in
            training.
    """

    columns: Columns = field(default_factory=Columns)
