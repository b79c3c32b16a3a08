import subprocess
import sys
from pathlib import Path

import pytest

from tests.demo_model import demo_path


@pytest.mark.weights
@pytest.mark.slow
def test_the_demonstration_is_as_expected(tmp_path: Path) -> None:
    demo_path()
    done = subprocess.run(
        [sys.executable, "-m", "tokenmark.eval.demo", "--folder", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("watermarked") == 6
    assert done.stdout.count("yes") == 10
    assert "NO" not in done.stdout
    assert (tmp_path / "marked-1.txt").stat().st_size > 500
