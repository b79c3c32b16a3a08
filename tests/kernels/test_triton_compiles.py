"""That kernels compile for a GPU where there is none: the interpreter runs what Triton refuses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no release for this platform")

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tokenmark.kernels.filters_triton import _WARPS, _WIDTH, _floor_kernel
from tokenmark.kernels.gumbel_triton import _race_kernel, _winner_kernel

TYPES = dict(symbols="*i64", families="*u8", temperatures="*fp32", floors="*fp32", bests="*i32")
TYPES |= dict(drawn_ids="*i64", status="*i32", has_choice="*u1", drawn_words="*i32", gaps="*fp32")
TYPES |= dict(top_k="*i64", top_p="*fp64", min_p="*fp64")
READY = ("*i32",)
CONTEXTS = ("*i32", "i32", "*i32", "*i32", "*u1", "*i32", "i32")
# An integer that is 1 is a constant to Triton: here the length and the width of a history.
SHORT = ("*i32", "constexpr", "*i32", "*i32", "*u1", "*i32", "constexpr")
target = GPUTarget("cuda", 90, 32)

def compile(kernel, types, constants, **options):
    signature = {name: (TYPES | types).get(name, "i32") for name in kernel.arg_names}
    signature |= {name: "constexpr" for name in constants if isinstance(name, str)}
    source = ASTSource(kernel, signature, constants)
    ptx = triton.compile(source, target=target, options=options).asm["ptx"]
    assert ".local" not in ptx, f"{kernel}: {constants} spills registers"
    assert "div.full" not in ptx, f"{kernel}: {constants} divides inexactly"
    assert "ftz.f32" not in ptx, f"{kernel}: {constants} takes subnormal logits for zero"

def race(logits, sources, constants, **more):
    constants |= dict(lanes=128, **more)
    compile(_race_kernel, dict(logits=logits, sources=sources), constants)

for family in (0, 1):
    race("*fp32", READY, dict(id_stride=1), family=family, detailed=True)
    race("*bf16", CONTEXTS, {}, family=family, detailed=False)
race("*fp16", SHORT, {(3, 1): 1, (3, 6): 1}, family=1, detailed=False)
compile(_winner_kernel, {}, dict(detailed=True, width=512))
compile(_winner_kernel, {}, dict(drawn_words=None, gaps=None, detailed=False, width=512))
compile(_floor_kernel, dict(logits="*fp32"), dict(id_stride=1, width=_WIDTH), num_warps=_WARPS)
compile(_floor_kernel, dict(logits="*fp16"), dict(width=_WIDTH), num_warps=_WARPS)
"""


# Launches are only recorded: by what Triton tells one compilation of a kernel from another.
LAUNCH = """
import torch
from triton import JITFunction
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature
from tokenmark.kernels.filters_triton import find_floors
from tokenmark.kernels.gumbel_triton import draw_rows
from tokenmark.watermark.prf.family import Family

backend = make_backend(GPUTarget("cuda", 90, 32))
launched = []

def record(kernel, *args, grid, warmup, **options):
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    launched.append((kernel.__name__, str(bind(*args, **options)[1])))

JITFunction.run = record
for n_rows, n_ids in (1, 1), (1, 16), (2, 2049), (16, 50257), (513, 65536):
    logits = torch.zeros(n_rows, n_ids)
    states = torch.randint(2**31, (n_rows, 8), dtype=torch.int32)
    symbols, families = states[:, 0].long() % 2**20, states[:, 1].to(torch.uint8) % 2
    scale = torch.rand(n_rows), torch.rand(n_rows)
    find_floors(logits, scale[0], symbols + 1, scale[1].double(), scale[0].double())
    draw_rows(logits, states, symbols, families, *scale, present=Family)
names = [name for name, _ in set(launched)]
assert len(launched) == 20
assert sorted(names) == ["_floor_kernel", "_race_kernel", "_race_kernel", "_winner_kernel"], names
"""


def check(script: str, cache: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_kernels_compile_without_a_device(tmp_path: Path) -> None:
    check(COMPILE, tmp_path)


@pytest.mark.slow
def test_neither_sizes_nor_rows_compile_a_kernel_anew(tmp_path: Path) -> None:
    check(LAUNCH, tmp_path)
