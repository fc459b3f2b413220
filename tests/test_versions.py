"""Which versions are said to be tested, in one place for the program and in the pages and files
that repeat it."""

import configparser
import re
from pathlib import Path

import pytest
from dynfix.runtime.environment.torch_versions import NEWEST, OLDEST, TESTED, too_old, untested

ROOT = Path(__file__).parents[1]


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def ini(name):
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / name, encoding="utf-8")
    return parser


@pytest.mark.parametrize("page", ["README.md", "docs/versions.md"])
def test_pages_name_the_tested_range(page):
    assert set(re.findall(r"torch \d+\.\d+ to \d+\.\d+", text(page))) == {TESTED}


def test_what_is_installed_is_in_the_range():
    wanted = ini("setup.cfg")["options.extras_require"]["torch"]
    assert f"torch>={OLDEST[0]}.{OLDEST[1]}" in wanted.split()
    (used,) = re.findall(r"^torch==(.+)$", text("constraints.txt"), re.M)
    assert not too_old(used) and not untested(used)


def test_the_oldest_and_the_newest_have_an_environment():
    tox = ini("tox.ini")
    wanted = {f"torch{major}{minor}" for major, minor in (OLDEST, NEWEST)}
    (name,) = (each for each in tox.sections() if each.startswith("testenv:smoke-"))
    assert set(re.fullmatch(r"testenv:smoke-\{(.+)\}", name)[1].split(",")) == wanted
    for major, minor in (OLDEST, NEWEST):
        assert f"torch{major}{minor}: torch=={major}.{minor}." in tox[name]["deps"]


def test_pythons_are_the_same_everywhere():
    listed = re.findall(r"Python :: (3\.\d+)", text("setup.cfg"))
    environments = re.search(r"testenv:light-py\{(.+)\}", text("tox.ini"))[1].split(",")
    assert [version.replace(".", "") for version in listed] == environments
    assert f"Python {listed[0]} to {listed[-1]}" in text("README.md")
    assert f"Python {listed[0]} to {listed[-1]}" in text("docs/versions.md")
    assert ini("setup.cfg")["options"]["python_requires"] == f">={listed[0]}"


@pytest.mark.parametrize(
    ("version", "old", "new"),
    [
        ("1.13.1", True, False),
        ("2.9.1+cu128", True, False),
        ("2.10.0", True, False),
        ("2.11.0a0+git12", False, False),
        ("2.11.0", False, False),
        ("2.14.1+cu130", False, False),
        ("2.15.0", False, True),
        ("2.15.0.dev20270101+cpu", False, True),
        ("3.0.0", False, True),
        ("of a fork", False, True),
    ],
)
def test_an_older_one_is_refused_and_a_newer_one_is_named(version, old, new):
    refusal, remark = too_old(version), untested(version)
    assert (refusal is not None, remark is not None) == (old, new)
    for message in filter(None, (refusal, remark)):
        assert version in message and "pip install" in message
    assert remark is None or TESTED in remark
