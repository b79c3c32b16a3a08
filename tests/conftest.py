"""What all tests share: fixed examples for hypothesis, and what may not be skipped."""

import os
from pathlib import Path

# Before torch is imported: threads that spin while they wait bring a busy machine to a halt.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Before Triton is imported by anything: without a GPU its kernels run under its interpreter.
os.environ.setdefault("TRITON_INTERPRET", "0" if Path("/dev/nvidiactl").exists() else "1")

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, so that a red run can be repeated; `--hypothesis-profile=fresh`
# draws new ones.
settings.register_profile(
    "fixed", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fresh", deadline=None)
settings.load_profile("fixed")


def is_required(what: str) -> bool:
    """Whether TOKENMARK_REQUIRE says that tests needing this may not skip."""
    return what in os.environ.get("TOKENMARK_REQUIRE", "").replace(",", " ").split()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item):  # noqa: ANN201 - pytest's own generator protocol
    """Fail rather than skip where the environment was promised to have what a test needs."""
    try:
        return (yield)
    except pytest.skip.Exception as skipped:
        required = [mark.name for mark in item.iter_markers() if is_required(mark.name)]
        if required:
            pytest.fail(f"needs {required[0]}, which may not be missing here: {skipped.msg}")
        raise
