"""Shows and measures what the mark does: the demonstration, the benchmarks, the evaluation."""
