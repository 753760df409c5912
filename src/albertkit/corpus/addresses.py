"""The names of `albertkit.addresses`, for callers that know them here."""

from albertkit.addresses import file_system, is_remote, reaching

__all__ = ["file_system", "is_remote", "reaching"]
