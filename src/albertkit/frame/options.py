"""Options that many commands share, each described once. Loads no torch."""

from dataclasses import dataclass, field
from typing import Literal

from albertkit.data.columns import Columns, OnError
from albertkit.validation import Positive

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
        columns: Names of the columns of a table, if they are not the usual ones or those in training.
    """

    columns: Columns = field(default_factory=Columns)
