import sys
from pathlib import Path

import numpy as np
import pytest

from tokenmark.eval.commands import CommandError
from tokenmark.eval.process_cases import PROCESS_CASES, _process

MIB = 2**20


def test_the_peak_of_a_process_is_its_own_and_not_that_of_who_starts_it() -> None:
    ours = np.ones(300 * MIB, dtype=np.uint8)
    bare = _process([sys.executable, "-c", "pass"])
    filled = _process([sys.executable, "-c", f"b'x' * {100 * MIB}"])
    assert ours.size == 300 * MIB
    assert bare.peak_mib is not None
    assert filled.peak_mib is not None
    assert 5 < bare.peak_mib < 50
    assert 95 < filled.peak_mib - bare.peak_mib < 110


def test_seconds_are_those_of_the_process_alone() -> None:
    slept = _process([sys.executable, "-c", "import time; time.sleep(0.3)"])
    assert 0.3 < slept.seconds < 3


def test_a_process_that_fails_is_told() -> None:
    with pytest.raises(CommandError, match="status 3"):
        _process([sys.executable, "-c", "raise SystemExit(3)"])


def test_the_help_case_measures_a_real_process(tmp_path: Path) -> None:
    run = PROCESS_CASES["help"].prepare(tmp_path)()
    assert 0.01 < run.seconds < 30
    assert run.peak_mib is not None
    assert run.peak_mib > 5
