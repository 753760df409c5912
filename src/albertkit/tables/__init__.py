"""The floor of the package: input files, their lines and tables, layouts of tasks, bad rows, rows in memory."""

IGNORED = -100  # the target of a position or sequence without a label, as in torch's cross_entropy
