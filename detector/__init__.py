"""Finds marks in text, offline: needs a key and a tokenizer, never a model."""
