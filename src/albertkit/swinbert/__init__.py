"""SwinBERT's weights, arguments and code, with ALBERT in BERT's place."""
