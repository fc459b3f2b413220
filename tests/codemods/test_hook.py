"""The hooks with the real pre-commit, in a scratch repository: a commit is blocked, fixed, and
passes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import doc_pages
import pytest

from . import support

TUTORIAL = doc_pages.ROOT / "docs" / "tutorial.md"

ROOT = Path(__file__).parents[2]
CONFIG = "repos:\n- repo: {repo}\n  rev: {rev}\n  hooks:\n  - id: {hook}\n"


def run(*argv, cwd, ok=True, **env):
    done = subprocess.run(
        argv, cwd=cwd, capture_output=True, text=True, env={**os.environ, **env}, timeout=550
    )
    assert not ok or done.returncode == 0, done.stdout + done.stderr
    return done


def git(*argv, cwd, ok=True, **env):
    return run("git", "-c", "user.name=a", "-c", "user.email=a@b.c", *argv, cwd=cwd, ok=ok, **env)


@pytest.fixture
def hook_repository(tmp_path):
    """A git repository with this working tree's tracked files in it."""
    repository = tmp_path / "dynfix"
    names = git(
        "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT
    ).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (repository / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, repository / name)
    git("init", "-q", cwd=repository)
    git("add", "-A", cwd=repository)
    git("commit", "-qm", "tool", cwd=repository)
    return repository, git("rev-parse", "HEAD", cwd=repository).stdout.strip()


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    git("init", "-q", cwd=folder)
    doc_pages.write_files(TUTORIAL, folder, "model.py", "train.py")
    return folder


def test_a_commit_is_blocked_fixed_and_passes(hook_repository, project, tmp_path):
    pre_commit = [sys.executable, "-m", "pre_commit"]
    if run(*pre_commit, "--version", cwd=project, ok=False).returncode:
        pytest.skip("pre-commit is not installed")
    repository, rev = hook_repository
    home = {"PRE_COMMIT_HOME": str(tmp_path / "cache")}
    write = (project / ".pre-commit-config.yaml").write_text
    write(CONFIG.format(repo=repository, rev=rev, hook="dynfix-check"))
    run(*pre_commit, "install", cwd=project, **home)
    git("add", "-A", cwd=project)
    blocked = git("commit", "-m", "model", cwd=project, ok=False, **home)
    assert blocked.returncode != 0
    shown = doc_pages.shown(TUTORIAL, "dynfix check .")
    assert shown[shown.index("DYN301") :] in blocked.stdout + blocked.stderr

    assert support.command("--unsafe-fixes", project)[0] == 0
    git("add", "-A", cwd=project)
    git("commit", "-m", "model", cwd=project, **home)

    (project / "other.py").write_text((support.FIXTURES / "DYN301/prints.in.py").read_text())
    write(CONFIG.format(repo=repository, rev=rev, hook="dynfix"))
    git("add", "-A", cwd=project)
    fixing = git("commit", "-m", "model", cwd=project, ok=False, **home)
    assert "files were modified by this hook" in fixing.stdout + fixing.stderr

    git("add", "-A", cwd=project)
    git("commit", "-m", "model", cwd=project, **home)
    assert "is_compiling" in git("show", "HEAD:other.py", cwd=project).stdout
    no_torch = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is not None)"
    for python in (tmp_path / "cache").glob("repo*/py_env-*/bin/python"):
        run(str(python), "-c", no_torch, cwd=project)
