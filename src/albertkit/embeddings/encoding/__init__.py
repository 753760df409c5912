"""Files of texts of any size to files of vectors."""
