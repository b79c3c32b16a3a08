import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenmark.eval import draw_memory
from tokenmark.eval.draw_memory import MEMORY_CASES
from tokenmark.eval.measuring import GateError, Run

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="memory is read from Linux's /proc"
)


@needs_proc
@pytest.mark.parametrize("n_mib", [64, 256])
def test_a_temporary_is_seen_though_it_is_gone_at_the_end(n_mib: int) -> None:
    # In a process of its own: one that has run other tests may have so much memory in reserve.
    script = f"""
import numpy as np
from tokenmark.eval.draw_memory import growth_mib
print(growth_mib(lambda: np.ones({n_mib} * 2**20, dtype=np.uint8)), growth_mib(lambda: None))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    seen, after = map(float, done.stdout.split())
    assert n_mib * 0.9 < seen < n_mib * 1.1 + 2
    # Nor does an earlier peak count.
    assert after < 2


def growing(growth: float) -> Callable[[], Run]:
    return lambda: Run(seconds=1.0, peak_mib=growth)


def test_a_draw_that_takes_a_byte_an_entry_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw_memory, "_measured", growing(16.0))
    with pytest.raises(GateError, match=r"took 16\.0 MiB beside logits of 64 MiB"):
        MEMORY_CASES["draw-memory"].prepare(tmp_path)
    monkeypatch.setattr(draw_memory, "_measured", growing(1.0))
    assert MEMORY_CASES["draw-memory"].prepare(tmp_path)().peak_mib == 1.0


@needs_proc
@pytest.mark.slow
def test_a_draw_takes_no_temporary_of_the_size_of_the_logits() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tokenmark.eval.draw_memory"], capture_output=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["growth_mib"] < 4
    assert found["seconds"] > 0
