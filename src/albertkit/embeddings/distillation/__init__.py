"""A student that learns a teacher's vectors."""
