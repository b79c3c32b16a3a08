"""Who may import whom, and that the packaging names what is there."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = CONFIG["tool"]["setuptools"]["package-dir"]
FOLDERS = ("watermark", "detector", "kernels", "engine", "api", "eval", "cli")
MAX_LINES = 400

# Folder -> folders of ours, and other distributions, that its modules may import.
OURS = {
    "watermark": {"watermark"},
    "detector": {"detector", "watermark"},
    "kernels": {"kernels", "watermark"},
    "engine": {"engine", "kernels", "watermark"},
    "api": {"api", "detector", "engine", "watermark"},
    "eval": {"eval", "detector", "engine", "kernels", "watermark"},
    "cli": set(FOLDERS),
}
NUMERIC = {"numpy"}
OTHERS = {
    "watermark": NUMERIC | {"cryptography", "filelock", "platformdirs"},
    "detector": NUMERIC | {"tokenizers"},
    "kernels": NUMERIC | {"numba", "torch", "triton"},
    "engine": NUMERIC
    | {"filelock", "gguf", "jinja2", "prometheus_client", "psutil", "tokenizers", "torch"},
    "api": {"fastapi", "prometheus_client", "pydantic", "pydantic_core", "starlette", "uvicorn"},
    "eval": NUMERIC | {"click", "rich", "torch", "triton"},
    "cli": {"click", "rich", "torch", "uvicorn"},
}
# The plain-Python half of the engine, testable on any machine.
NO_TORCH = {"engine/config.py", "engine/request.py", "engine/block_pool.py", "engine/scheduler.py"}
NO_TORCH |= {"engine/detokenizer.py"}
# The one module through which HTTP reaches the engine.
ENGINE_DOOR = "api/generation.py"


MODULES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, also inside functions; type-checking ones included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert "*" not in {alias.name for alias in node.names}, f"{path}: star import"
            if node.module == "tokenmark":
                yield from (f"tokenmark.{alias.name}" for alias in node.names)
            else:
                assert node.module is not None
                yield node.module


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def complaints(folder: str, imported: list[str]) -> list[str]:
    """The imports that a module of the folder may not have."""
    found = []
    for module in imported:
        top, _, rest = module.partition(".")
        if top == "tokenmark":
            allowed = rest.split(".")[0] in OURS[folder]
        elif top in FOLDERS:
            allowed = False  # A bare folder import makes a second copy of every class.
        else:
            allowed = top in OTHERS[folder] or top in sys.stdlib_module_names
        if not allowed:
            found.append(module)
    return found


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    imported = list(imports(path))
    assert not complaints(path.relative_to(ROOT).parts[0], imported)
    if name_of(path) in NO_TORCH:
        assert not {"torch", "numpy"} & {module.partition(".")[0] for module in imported}
    if path.is_relative_to(ROOT / "api") and name_of(path) != ENGINE_DOOR:
        assert not [module for module in imported if module.startswith("tokenmark.engine")]


@pytest.mark.parametrize(
    ("folder", "module"),
    [
        ("watermark", "tokenmark.detector.pvalue"),
        ("detector", "torch"),
        ("detector", "tokenmark.engine.core"),
        ("kernels", "tokenmark.engine"),
        ("cli", "watermark.key"),
        ("engine", "transformers"),
    ],
)
def test_a_forbidden_import_is_caught(folder: str, module: str) -> None:
    assert complaints(folder, [module]) == [module]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_is_short_and_says_what_it_is(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= MAX_LINES
    assert ast.get_docstring(ast.parse(source))


def test_packaging_lists_every_package() -> None:
    folders = {path.parent.relative_to(ROOT).as_posix() for path in MODULES}
    assert set(PACKAGES.values()) == folders
    assert {name.replace("tokenmark.", "").replace(".", "/") for name in PACKAGES} == folders
    assert sorted(PACKAGES) == CONFIG["tool"]["setuptools"]["packages"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_typed_and_linked_for_the_type_checker(folder: str) -> None:
    assert (ROOT / folder / "py.typed").exists()
    assert (ROOT / ".typecheck" / "tokenmark" / folder).resolve() == ROOT / folder


def test_kernels_is_no_regular_package() -> None:
    # With the repository on the path it would shadow the `kernels` that transformers imports.
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_nothing_else_lies_at_the_top() -> None:
    allowed = {*FOLDERS, "tests", "docs", "deploy", "pyproject.toml", "Makefile"}
    allowed |= {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "NOTICE"}
    built = {"build", "dist"}
    found = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")} - built
    assert {name for name in found if not name.endswith(".egg-info")} <= allowed
