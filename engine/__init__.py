"""The serving engine: what turns a prompt into marked text. Knows nothing of HTTP."""
