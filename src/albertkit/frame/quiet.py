"""Silence of other libraries while a command uses them."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_transformers(keep_warnings: bool = False) -> Iterator[None]:
    """Hide transformers' progress bars and, unless `keep_warnings`, its warnings of unused heads and long texts."""
    from transformers.utils import logging

    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    if not keep_warnings:
        logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
