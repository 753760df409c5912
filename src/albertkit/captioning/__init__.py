"""Video to text: frames to visual tokens, visual tokens through ALBERT's one layer to a caption."""
