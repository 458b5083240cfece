"""HTTP for operators and data clients: listeners, admission, tokens, streams in and out."""
