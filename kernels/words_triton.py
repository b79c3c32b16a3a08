"""The keyed words as Triton device functions, bit for bit those of `tokenmark.watermark.prf`.

Knows nothing of contexts, logits or races. A family of words is read in calls; every call yields
the words of several indices, one call a lane.

| family  | state of a row       | words a call | index of word j of call c       |
|---------|----------------------|--------------|---------------------------------|
| chacha8 | key, 8 words         | 16           | 2048 (c >> 7) + 128 j + c % 128 |
| philox  | 3 + 2 words          | 4            | 4 c + j                         |

So neighbouring lanes of ChaCha8 meet neighbouring indices.
"""

import triton
import triton.language as tl

from tokenmark.watermark.prf.family import Family

__all__ = ["PHILOX", "hchacha8", "philox4x32", "words_of_calls"]

PHILOX = tl.constexpr(Family.PHILOX.value)


@triton.jit
def _quarter_round(
    a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    # Sums are meant modulo 2^32, which a debug build would take for an overflow.
    a = tl.add(a, b, sanitize_overflow=False)
    d = d ^ a
    d = (d << 16) | (d >> 16)
    c = tl.add(c, d, sanitize_overflow=False)
    b = b ^ c
    b = (b << 12) | (b >> 20)
    a = tl.add(a, b, sanitize_overflow=False)
    d = d ^ a
    d = (d << 8) | (d >> 24)
    c = tl.add(c, d, sanitize_overflow=False)
    b = b ^ c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _initial_state(key: tl.tuple, tail: tl.tuple) -> tl.tuple:
    zero = tl.full((), 0, tl.uint32)
    constants = (zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574)
    return constants + key + tail


@triton.jit
def _permute(state: tl.tuple) -> tl.tuple:
    """The eight rounds of ChaCha8."""
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = state
    for _ in tl.static_range(4):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    return x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15


@triton.jit
def hchacha8(key: tl.tuple, inputs: tl.tuple) -> tl.tuple:
    """The subkey of a key of eight words and four words of input."""
    x0, x1, x2, x3, _, _, _, _, _, _, _, _, x12, x13, x14, x15 = _permute(
        _initial_state(key, inputs)
    )
    return x0, x1, x2, x3, x12, x13, x14, x15


@triton.jit
def _chacha8_words(state: tl.tuple, calls: tl.tensor) -> tl.tuple:
    """The sixteen words of ChaCha8 blocks; calls past the keystream begin it anew."""
    zero = tl.full((), 0, tl.uint32)
    initial = _initial_state(state, ((calls & 0xFFFF).to(tl.uint32), zero, zero, zero))
    permuted = _permute(initial)
    words: tl.tuple = ()
    for j in tl.static_range(16):
        word = tl.add(permuted[j], initial[j], sanitize_overflow=False)
        words = words + (word,)  # noqa: RUF005 - Triton compiles no starred expression
    return words


@triton.jit
def philox4x32(counter: tl.tuple, key: tl.tuple) -> tl.tuple:
    """The four words of Philox4x32-10 of a counter of four and a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in tl.static_range(10):
        upper0 = tl.umulhi(c0, 0xD2511F53)
        upper2 = tl.umulhi(c2, 0xCD9E8D57)
        lower0 = tl.mul(c0, 0xD2511F53, sanitize_overflow=False)
        lower2 = tl.mul(c2, 0xCD9E8D57, sanitize_overflow=False)
        c0, c1, c2, c3 = upper2 ^ c1 ^ k0, lower2, upper0 ^ c3 ^ k1, lower0
        k0 = tl.add(k0, 0x9E3779B9, sanitize_overflow=False)
        k1 = tl.add(k1, 0xBB67AE85, sanitize_overflow=False)
    return c0, c1, c2, c3


@triton.jit
def words_of_calls(
    state: tl.tuple, calls: tl.tensor, family: tl.constexpr
) -> tuple[tl.tuple, tl.tensor]:
    """The words of each lane's call, and the index of the first of them."""
    if family == PHILOX:
        words = philox4x32((calls.to(tl.uint32), state[0], state[1], state[2]), state[3:5])
        first_index = calls << 2
    else:
        words = _chacha8_words(state, calls)
        first_index = ((calls >> 7) << 11) + (calls & 127)
    return words, first_index
