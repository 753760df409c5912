"""How good captions are, by the definitions of the COCO caption scorer."""
