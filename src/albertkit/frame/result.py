"""Results of commands: plain values for programs, sections for readers."""

import dataclasses
from typing import Any

from albertkit.frame.section import Facts, Section
from albertkit.frame.values import plain


class Result:
    """Base of the dataclasses that commands return, frozen or not.

    A subclass that leaves its example or file out, or did something doubtful, has a field `warnings`: the command line
    prints them on stderr.
    """

    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return every field as JSON can hold it: paths as text, NaN as null."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {field.name: plain(getattr(self, field.name)) for field in fields}

    def sections(self) -> list[Section]:
        """Return what is printed: by default every field but the warnings."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return [Facts({field.name: getattr(self, field.name) for field in fields if field.name != "warnings"})]
