"""How Triton kernels read rows of logits. Knows nothing of words, races or filters."""

import triton
import triton.language as tl

__all__ = ["scaled_logits"]


@triton.jit
def scaled_logits(
    row_logits: tl.tensor,
    id_stride: tl.tensor,
    n_ids: tl.tensor,
    temperature: tl.tensor,
    ids: tl.tensor,
) -> tl.tensor:
    """The logits of ids divided by the temperature, as IEEE float32; -inf where there is no id."""
    places = row_logits + ids.to(tl.int64) * id_stride
    logits = tl.load(places, mask=(ids >= 0) & (ids < n_ids), other=float("-inf"))
    return tl.div_rn(logits.to(tl.float32), temperature)
