"""SwinBERT's source tree with ALBERT in BERT's place: a few tokens changed, four kinds of files added, all of it reversible."""
