"""Pages about runs, what is in a model folder, what a machine can do: shown, above everything that is shown."""
