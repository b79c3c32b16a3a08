"""The documentation describes what is there, names nothing else, and its examples run."""

import contextlib
import doctest
import io
import math
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from tests.tiny_engine import tiny_tokenizer_json
from tokenmark.api import compatibility, response_schemas, schemas
from tokenmark.api.errors import ErrorCode
from tokenmark.cli import detect, keys, serve
from tokenmark.detector.detector import DetectionKey, Detector
from tokenmark.detector.power import LOW_ENTROPY, OPEN, PROSE, detection_power
from tokenmark.detector.report import Outcome, Reason, Verdict
from tokenmark.engine.answer import UnmarkedReason
from tokenmark.engine.metrics import EngineMetrics
from tokenmark.engine.request import FinishReason
from tokenmark.watermark.gumbel import race, winners
from tokenmark.watermark.key import WatermarkKey
from tokenmark.watermark.key_document import Protection
from tokenmark.watermark.key_entry import ENTRY_FIELDS, KeyEntry, KeyState
from tokenmark.watermark.keyring import KeyringFile
from tokenmark.watermark.locations import default_keyring_path
from tokenmark.watermark.null_law import ExponentialLaw
from tokenmark.watermark.prf import chacha8
from tokenmark.watermark.profiles import PROFILES
from tokenmark.watermark.scheme import Scheme
from tokenmark.watermark.tokenizers import store_tokenizer

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

COMMANDS: dict[str, click.Command] = {
    "wm-serve": serve.main,
    "wm-detect": detect.main,
    "wm-keys": keys.main,
}
PAGE_OF = {"wm-serve": "serving.md", "wm-detect": "detecting.md", "wm-keys": "keys.md"}
# What a shell block may call besides the commands and targets of this project.
USUAL_PROGRAMS = {"cat", "curl", "pip", "python3"}

KEY = WatermarkKey.from_hex("5e" * 32)
SCHEME = Scheme(name="tm1")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def missing(names: Sequence[str], text: str) -> list[str]:
    """Names that occur nowhere as code, alone or with what follows a name there."""
    return [name for name in names if not re.search(rf"[`\"]{re.escape(name)}(?![\w-])", text)]


def test_what_is_not_described_is_caught() -> None:
    text = "`--json FILE`, `jsonl`, json"
    assert missing(["--json", "json", "--jso", "FILE"], text) == ["json", "--jso", "FILE"]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(language: str) -> list[tuple[Path, str]]:
    """The fenced blocks of a language, with the page of each."""
    fence = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [(path, found) for path in PAGES for found in fence.findall(path.read_text("utf-8"))]


def leaves(command: click.Command) -> Iterator[click.Command]:
    """The command, or those of a group."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from leaves(inner)
    else:
        yield command


def options(command: click.Command) -> list[str]:
    return [
        name
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in parameter.opts
    ]


def test_every_command_is_looked_at() -> None:
    assert set(COMMANDS) == set(PROJECT["scripts"])


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_described(name: str) -> None:
    text = page(PAGE_OF[name])
    for command in leaves(COMMANDS[name]):
        assert not missing(options(command), text)
        assert command is COMMANDS[name] or f"`{name} {command.name}" in text


def test_every_request_field_is_described() -> None:
    models = [
        schemas.ChatRequest,
        schemas.CompletionRequest,
        schemas.Message,
        schemas.StreamOptions,
        schemas.TextPart,
        schemas.WatermarkOptions,
    ]
    assert not missing(
        [name for model in models for name in model.model_fields], page("serving.md")
    )


@pytest.mark.parametrize("name", ["CHAT", "COMPLETIONS", "MESSAGE", "STREAM_OPTIONS"])
def test_every_field_without_effect_is_described(name: str) -> None:
    table: compatibility.Compatibility = getattr(compatibility, name)
    assert not missing([*table.without_effect, *table.neutral], page("serving.md"))


@pytest.mark.parametrize(
    "names",
    [list(ErrorCode), list(UnmarkedReason), list(FinishReason)],
    ids=["codes", "reasons", "finish"],
)
def test_every_code_and_reason_of_the_server_is_described(names: list[str]) -> None:
    assert not missing(names, page("serving.md"))


def test_every_field_of_a_report_is_described() -> None:
    fields = [
        *response_schemas.WatermarkReport.model_fields,
        *response_schemas.ErrorDetail.model_fields,
    ]
    assert not missing(fields, page("serving.md"))


def test_every_metric_is_described_and_no_other() -> None:
    families = EngineMetrics(CollectorRegistry()).registry.collect()
    names = {
        f"{family.name}_total" if family.type == "counter" else family.name for family in families
    }
    assert set(re.findall(r"\btokenmark_\w+", page("serving.md"))) == names


@pytest.mark.parametrize(
    "names",
    [list(Verdict), list(Outcome), list(Reason)],
    ids=["verdicts", "outcomes", "reasons"],
)
def test_every_verdict_and_reason_is_described(names: list[str]) -> None:
    assert not missing(names, page("detecting.md"))


def test_every_field_of_a_detection_is_described() -> None:
    entry = DetectionKey(name="k", key=KEY, scheme=SCHEME)
    detection = Detector([entry]).detect_ids(list(range(20))).to_json()
    signals = detection["signals"]
    assert isinstance(signals, list)
    fields = [*detection, *signals[0], *signals[0]["power"], "source", "error"]
    assert not missing(fields, page("detecting.md"))


def test_every_field_and_state_of_a_key_is_described() -> None:
    names = [*ENTRY_FIELDS, "secret", *KeyState, *(kind.value for kind in Protection)]
    assert not missing(names, page("keys.md"))


@pytest.mark.parametrize("scheme", sorted(PROFILES))
def test_every_scheme_is_described_on_a_page_that_the_readme_links(scheme: str) -> None:
    own = ROOT / "docs" / f"scheme-{scheme}.md"
    name = own.name if own.exists() else "other-engines.md"
    assert f"docs/{name}" in (ROOT / "README.md").read_text(encoding="utf-8")
    if own.exists():
        assert page(name).startswith(f"# Scheme {scheme}\n")
    else:
        assert not missing([scheme, *(p.name for p in PROFILES[scheme].parameters)], page(name))


def test_every_marker_is_described() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    markers = config["tool"]["pytest"]["ini_options"]["markers"]
    names = [marker.partition(":")[0] for marker in markers]
    assert not missing(names, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))


def test_the_lengths_in_the_table_are_the_computed_ones() -> None:
    rows = re.findall(
        r"^\| (1e-\d) \| (\d+) \| (\d+) \| (\d+) \|$", page("detecting.md"), re.MULTILINE
    )
    assert len(rows) == 3
    for level, *lengths in rows:
        log_level = math.log(float(level))
        wanted = [(OPEN, 0.5), (PROSE, 0.9), (LOW_ENTROPY, 0.9)]
        for length, (kind, power) in zip(map(int, lengths), wanted, strict=True):
            before, at = (
                detection_power(n, log_level, kind, ExponentialLaw(23.0))
                for n in (length - 1, length)
            )
            assert before < power <= at, (level, length)


def anchors(path: Path) -> set[str]:
    """The names by which links reach the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        if "://" in target:
            continue
        found = (path.parent / name).resolve() if name else path
        assert found.is_relative_to(ROOT), target
        assert found.is_file(), target
        assert not anchor or anchor in anchors(found), target


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z]+):", text, re.MULTILINE))


def calls(block: str) -> Iterator[list[str]]:
    """The programs that a shell block calls, each with its arguments."""
    for line in block.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in shlex.split(line, comments=True):
            if word in {"|", "&&"}:
                yield words
                words = []
            else:
                words.append(word)
        if words:
            yield words


def check_call(program: str, arguments: list[str]) -> None:
    if program == "make":
        assert {word for word in arguments if "=" not in word} <= make_targets()
    elif program in COMMANDS:
        command = COMMANDS[program]
        if isinstance(command, click.Group):
            command = command.commands[arguments[0]]
        given = {word.partition("=")[0] for word in arguments if word.startswith("--")}
        assert given <= set(options(command)), arguments
    else:
        assert program in USUAL_PROGRAMS, program


def test_shell_blocks_call_what_exists() -> None:
    found = [call for _, block in blocks("sh") for call in calls(block)]
    assert len(found) > 10
    for program, *arguments in found:
        check_call(program, arguments)


@pytest.mark.parametrize("call", ["make coffee", "wm-keys forge x", "wm-detect --fast x", "rm x"])
def test_a_call_of_what_does_not_exist_is_caught(call: str) -> None:
    program, *arguments = shlex.split(call)
    with pytest.raises((AssertionError, KeyError)):
        check_call(program, arguments)


def test_make_targets_in_the_text_exist() -> None:
    for path in PAGES:
        named = re.findall(r"`make ([a-z]+)", path.read_text(encoding="utf-8"))
        assert set(named) <= make_targets(), path


def marked_text(n_tokens: int) -> str:
    """Letters drawn evenly under the key, each one id of the tiny tokenizer."""
    ids = list(range(ord("a"), ord("e")))
    stream_key = SCHEME.profile.source.stream_key(KEY, SCHEME.context_width)
    logits = np.full((1, 128), -np.inf)
    logits[0, ord("a") : ord("z") + 1] = 0.0
    while len(ids) < n_tokens:
        row_key = chacha8.context_keys(stream_key, np.array([ids[-4:]]))
        ids.append(int(winners(race(logits, chacha8.keystream(row_key, 128)))[0]))
    return bytes(ids).decode("ascii")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with a key, its tokenizer and a marked text, in the working directory."""
    for variable in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.chdir(tmp_path)
    entry = KeyEntry(
        name="blog",
        key_id=KEY.key_id,
        scheme=SCHEME,
        created=datetime(2026, 1, 1, tzinfo=UTC),
        tokenizer=store_tokenizer(tiny_tokenizer_json())[1],
    )
    KeyringFile(default_keyring_path()).add(entry, KEY, protection=Protection.NONE)
    (tmp_path / "answer.txt").write_text(marked_text(80), encoding="utf-8")
    return tmp_path


def run_example(path: Path) -> str:
    (source,) = [block for found, block in blocks("python") if found == path]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, str(path), "exec"), {})  # noqa: S102 - the documented example itself
    return printed.getvalue()


@pytest.mark.usefixtures("home")
def test_the_example_of_the_readme_finds_the_mark() -> None:
    printed = run_example(ROOT / "README.md")
    assert printed.startswith("watermarked -")
    assert f"The mark of key {KEY.key_id} (tm1) was found" in printed


@pytest.mark.usefixtures("home")
def test_the_example_of_a_state_changes_it() -> None:
    assert not run_example(DOCS / "keys.md")
    assert KeyringFile(default_keyring_path()).read().get("blog").state is KeyState.VERIFY_ONLY


def test_every_python_block_is_run() -> None:
    assert [path for path, _ in blocks("python")] == [ROOT / "README.md", DOCS / "keys.md"]


def test_sessions_print_what_they_show() -> None:
    found = blocks("pycon")
    assert found
    for path, block in found:
        session = doctest.DocTestParser().get_doctest(block, {}, path.name, str(path), 0)
        results = doctest.DocTestRunner().run(session)
        assert results.attempted > 0
        assert results.failed == 0


def test_the_changelog_names_the_version_or_what_is_unreleased() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings
    assert headings[0] == "Unreleased" or headings[0].split()[0] == PROJECT["version"]


def test_the_notice_names_all_material_of_others() -> None:
    text = (ROOT / "NOTICE").read_text(encoding="utf-8")
    material = [*(ROOT / "tests" / "golden").iterdir(), *(ROOT / "eval").glob("*.txt")]
    assert [path.name for path in material if name_of(path) not in text] == []
