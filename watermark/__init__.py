"""What the generator and the detector must agree on: keys, schemes, contexts, words and scores."""
