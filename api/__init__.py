"""The HTTP service. Knows nothing of how a model computes or how a mark is drawn."""
