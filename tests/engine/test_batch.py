import torch

from tokenmark.engine.batch import Batch, build_batch
from tokenmark.engine.scheduler import ScheduledChunk, SchedulerOutput


def batch_of(*chunks: ScheduledChunk) -> Batch:
    return build_batch(
        SchedulerOutput(chunks=chunks, preempted=()),
        block_size=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


DECODE = ScheduledChunk("decode", start=5, token_ids=(50,), block_ids=(7, 2), samples=True)
# Neither ends its prompt nor begins it; its table already has a block for later tokens.
MIDDLE = ScheduledChunk(
    "middle", start=3, token_ids=(60, 61, 62), block_ids=(9, 1, 4), samples=False
)
LAST = ScheduledChunk("last", start=0, token_ids=(70, 71), block_ids=(3,), samples=True)


def test_chunks_lie_one_behind_the_other() -> None:
    batch = batch_of(DECODE, MIDDLE, LAST)
    assert batch.token_ids.tolist() == [50, 60, 61, 62, 70, 71]
    assert batch.positions.tolist() == [5, 3, 4, 5, 0, 1]


def test_a_slot_is_the_place_of_a_position_in_its_block() -> None:
    batch = batch_of(DECODE, MIDDLE, LAST)
    assert batch.slot_mapping.tolist() == [2 * 4 + 1, 9 * 4 + 3, 1 * 4 + 0, 1 * 4 + 1, 12, 13]


def test_only_chunks_that_sample_have_rows() -> None:
    batch = batch_of(DECODE, MIDDLE, LAST)
    assert batch.sample_rows.tolist() == [0, 5]
    assert batch.sample_ids == ("decode", "last")


def test_a_step_without_samples_has_no_rows() -> None:
    batch = batch_of(MIDDLE)
    assert batch.sample_rows.tolist() == []
    assert batch.sample_ids == ()


def test_index_tensors_are_int64_even_where_empty() -> None:
    batch = batch_of(MIDDLE)
    tensors = (batch.token_ids, batch.positions, batch.slot_mapping, batch.sample_rows)
    assert {tensor.dtype for tensor in tensors} == {torch.int64}
