"""Reads the golden vector files. They are never regenerated: a change is a new scheme version."""

import json
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden"


def load(name: str) -> Any:  # noqa: ANN401 - each file has a shape of its own
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def load_lines(name: str) -> list[dict[str, Any]]:
    lines = (GOLDEN / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
