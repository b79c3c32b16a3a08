import pytest

from tokenmark.engine.block_pool import BlockPool
from tokenmark.watermark.errors import CapacityError


def test_blocks_come_in_order_and_the_longest_free_one_first() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3) == [0, 1, 2]
    pool.free([1, 0])
    assert pool.allocate(3) == [3, 1, 0]
    pool.check_integrity()


def test_counts_follow_allocation() -> None:
    pool = BlockPool(4)
    assert (pool.n_blocks, pool.n_free, pool.n_held) == (4, 4, 0)
    held = pool.allocate(3)
    assert (pool.n_blocks, pool.n_free, pool.n_held) == (4, 1, 3)
    pool.free(held)
    assert (pool.n_blocks, pool.n_free, pool.n_held) == (4, 4, 0)


def test_allocating_nothing_is_allowed_even_when_all_is_held() -> None:
    pool = BlockPool(1)
    pool.allocate(1)
    assert pool.can_allocate(0)
    assert pool.allocate(0) == []


def test_too_few_free_blocks_leave_the_pool_as_it_was() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    assert not pool.can_allocate(2)
    with pytest.raises(CapacityError, match="2 KV blocks were asked for and 1 of 2 are free"):
        pool.allocate(2)
    assert pool.n_free == 1
    pool.check_integrity()


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(CapacityError, match="at least 1 block, got 0"):
        BlockPool(0)


@pytest.mark.parametrize("returned", [[0, 0], [0, 1, 0], [2], [0, 3], [-1], [4]], ids=str)
def test_freeing_what_is_not_held_is_a_fault_and_frees_nothing(returned: list[int]) -> None:
    pool = BlockPool(4)
    pool.allocate(2)
    with pytest.raises(AssertionError, match="freed twice or never allocated"):
        pool.free(returned)
    assert pool.n_free == 2
    pool.check_integrity()


def test_freeing_again_is_a_fault() -> None:
    pool = BlockPool(4)
    held = pool.allocate(2)
    pool.free(held)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(held)


@pytest.mark.parametrize(
    ("free", "held"),
    [([0, 1], set()), ([0, 1, 2], {2}), ([0, 0, 1], {2}), ([0, 1, 3], {2})],
    ids=["lost", "free and held", "free twice", "foreign"],
)
def test_integrity_sees_every_kind_of_damage(free: list[int], held: set[int]) -> None:
    pool = BlockPool(3)
    pool.check_integrity()
    pool._free.clear()
    pool._free.extend(free)
    pool._held |= held
    with pytest.raises(AssertionError, match=r"not 0\.\.2, each once"):
        pool.check_integrity()
