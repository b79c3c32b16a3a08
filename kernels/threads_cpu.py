"""The threads that compiled code runs on: our own. Knows nothing of what they run.

numba's threads would kill the process when two callers meet, or bring a second OpenMP beside
torch's. A pool of Python threads does neither, and compiled code needs no interpreter lock.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

__all__ = ["run_all"]


@cache
def _pool(n_workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_workers, thread_name_prefix="tokenmark-draw")


# Threads do not survive a fork.
os.register_at_fork(after_in_child=_pool.cache_clear)


def run_all(run: Callable[[int], None], n_tasks: int, n_threads: int) -> None:
    """Run the tasks 0, 1, ... side by side, the first of them in this thread."""
    running = [_pool(n_threads - 1).submit(run, i) for i in range(1, n_tasks)]
    run(0)
    for task in running:
        task.result()
