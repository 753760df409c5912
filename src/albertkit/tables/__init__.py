"""The floor of the package: input files, tables, bad rows, features, packed batches, streams of examples."""

IGNORED = -100  # the target of a position or sequence without a label, as in torch's cross_entropy
