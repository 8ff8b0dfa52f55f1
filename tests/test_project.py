"""The project installs what it says, without a GPU, and its scripts are well formed."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCK = (ROOT / "requirements" / "cpu.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINNED = dict(re.findall(r"^([a-z0-9._-]+)(?:\[[a-z,]+\])?==(\S+)", LOCK, flags=re.MULTILINE))
SCRIPTS = [*ROOT.glob("launch/*.sh"), ROOT / "launch" / "slurm.sbatch", ROOT / ".ci" / "run"]


def names(requirements):
    return {re.match(r"[A-Za-z0-9_-]+", r)[0].lower().replace("_", "-") for r in requirements}


def test_the_lock_brings_no_cuda_and_nothing_that_breaks_the_cpu_engine():
    banned = [
        n for n in PINNED if re.match(r"(nvidia|cuda|triton|torchvision|torchaudio|torchcodec)", n)
    ]
    assert banned == []
    assert PINNED["torch"].endswith("+cpu")


def test_every_dependency_of_the_package_is_pinned_in_the_lock():
    extras = PROJECT["optional-dependencies"]
    wanted = names(PROJECT["dependencies"] + extras["cpu"] + extras["openenv"] + extras["dev"])
    assert wanted - set(PINNED) == set()


def test_every_import_is_declared_and_every_declared_package_is_imported():
    """`mcp_types` and the like come with the package of the same first word."""
    imported = set()
    for path in ROOT.glob("tbrl/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                imported.add(node.module.split(".")[0])
    third_party = imported - set(sys.stdlib_module_names) - {"tbrl", "mcp_types"}
    package_of = {"hydra": "hydra-core", "openenv": "openenv-core", "yaml": "pyyaml"}
    used = {package_of.get(name, name) for name in third_party}
    extras = PROJECT["optional-dependencies"]
    required = names(PROJECT["dependencies"])
    optional = names(extras["gpu"] + extras["zero"] + extras["openenv"] + extras["tracking"])
    assert used - required - optional == set()
    assert required - used == set()


def test_the_lock_names_no_host_or_machine_path():
    assert re.findall(r"https?://|file://|--\S+|(?<!\S)/\S+", LOCK) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse(script):
    assert subprocess.run(["bash", "-n", script], capture_output=True).stderr == b""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_that_are_run_are_executable(script):
    sourced = script.name in ("env.sh", "slurm.sbatch")
    assert bool(script.stat().st_mode & 0o111) != sourced


def test_setup_does_nothing_when_it_is_up_to_date(tmp_path):
    """A finished environment is recognised by its stamp: nothing in it is touched or called."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text("#!/bin/sh\nexit 99\n")
    python.chmod(0o755)
    files = [ROOT / "requirements/cpu.lock", ROOT / "launch/setup.sh", ROOT / "pyproject.toml"]
    total = subprocess.run(
        ["sha256sum"], input=b"".join(f.read_bytes() for f in files), capture_output=True
    ).stdout.split()[0]
    (tmp_path / "tbrl-setup").write_bytes(total)
    environment = {"PATH": "/usr/bin:/bin", "TBRL_VENV": str(tmp_path)}
    done = subprocess.run([ROOT / "launch/setup.sh"], env=environment, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_setup_says_what_is_missing_without_a_cpu_build_of_torch(tmp_path):
    """No wheel to be found: one line with the remedy, and no CUDA build in its place."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$@" >> "$(dirname "$0")/../calls"\nexit 1\n')
    python.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin:/usr/local/bin", "TBRL_VENV": str(tmp_path)}
    environment["PYTHON"] = sys.executable
    done = subprocess.run(
        [ROOT / "launch/setup.sh"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "PIP_FIND_LINKS" in done.stderr
    assert "torch==" in (tmp_path / "calls").read_text()
    assert not (tmp_path / "tbrl-setup").exists()
