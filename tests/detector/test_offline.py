"""A text that the engine wrote is recognised where none of the engine's libraries exists."""

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.tiny_engine import tiny_engine, tiny_mark, tiny_tokenizer_json
from tokenmark.engine.request import SamplingParams
from tokenmark.watermark.key_entry import KeyEntry
from tokenmark.watermark.keyring import KeyringFile, Protection
from tokenmark.watermark.tokenizers import reference_of

_WITHOUT_ENGINE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        libraries = {"torch", "triton", "transformers", "numba"}
        ours = ("tokenmark.engine", "tokenmark.kernels")
        if name.partition(".")[0] in libraries or name.startswith(ours):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Refuse())
from tokenmark.cli.detect import main
main()
"""


async def write_text() -> str:
    with tiny_engine(mark=tiny_mark()) as engine:
        submissions = engine.model.submissions(
            list(b"Tell me"), SamplingParams(max_tokens=120, seed=3, ignore_eos=True)
        )
        return "".join([result.text async for result in engine.model.engine.generate(submissions)])


def test_generated_text_is_detected_without_the_engine(tmp_path: Path) -> None:
    mark, data = tiny_mark(), tiny_tokenizer_json()
    entry = KeyEntry(
        name="k",
        key_id=mark.key.key_id,
        scheme=mark.scheme,
        created=datetime(2026, 1, 1, tzinfo=UTC),
        tokenizer=reference_of(data),
    )
    KeyringFile(tmp_path / "ring.json").add(entry, mark.key, protection=Protection.NONE)
    (tmp_path / "tokenizer.json").write_bytes(data)
    (tmp_path / "text.txt").write_text(asyncio.run(write_text()), encoding="utf-8")
    options = ["--keyring", "ring.json", "--tokenizer", "tokenizer.json", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_ENGINE, "text.txt", *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] == "watermarked"
    assert result["signals"][0]["log10_pvalue"] < -20
