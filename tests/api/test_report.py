"""`dynrun --report`: one page that holds what it shows, escaped, small; clicked through where there is
a Chromium."""

import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import types

import forked
import pytest

pytest.importorskip("jinja2")
from dynfix.rewriter.dynrun import graph_layout, report_page

MAIN = "import sys; from dynfix.rewriter.dynrun.main import main; sys.argv[0] = 'dynrun'; sys.exit(main())"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
SCRIPT = """
    import torch
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(4, 8)
        def forward(self, x):
            y = self.a(x).relu().exp() * 2  # </script><img src=x onerror=alert(1)> & more
            if y.sum() > 0:
                torch._dynamo.graph_break() if False else print(end="")
            return y.sum(-1)
    net = Net()
    for n in (3, 3, 5, 5):
        net(torch.ones(n, 4))
"""


class Reader(html.parser.HTMLParser):
    """Elements with their attributes, and the text of scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.elements and self.elements[-1][0] == "script":
            self.scripts[-1] += data

    @property
    def data(self):
        return json.loads(self.scripts[0])


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a run, and the folder in which it was made."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("report")
    (folder / "script.py").write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-c", MAIN, "--report", "out.html", "script.py", "--x=<b>"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = forked.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"dynrun: --report: {folder}/out.html" in done.stderr.splitlines()
    return (folder / "out.html").read_text(), folder


def test_the_page_holds_what_it_shows(page):
    text, _ = page
    read = Reader(text)
    assert "This page holds source code" in text and len(text) < 1_000_000
    assert len(read.scripts) == 2 and "img" not in [tag for tag, _ in read.elements]
    for _, attributes in read.elements:
        assert not {"src", "href", "onload", "onerror"} & attributes.keys()
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp|https?://(?!www\.w3\.org/2000/svg)", text)
    assert "<h1>dynrun script.py --x=&lt;b&gt;</h1>" in text


def test_what_a_run_left(page):
    data = Reader(page[0]).data
    (function,) = data["functions"]
    assert function["name"].startswith("Net (script.py:7") and function["graphs"] >= 2
    assert any("has shape (5, 4) instead of (3, 4)" in why for why in function["recompiles"])
    file = next(file for file in data["files"] if file["name"] == "script.py")
    notes = {line: {n["kind"] for n in notes} for line, notes in file["notes"].items()}
    assert "kernel" in notes["8"] and "break" in notes["9"] and "<img src=x" in file["lines"][7]
    kinds = [event["kind"] for event in data["events"]]
    assert len(kinds) == 4 and kinds[0] == "recorded" and "recorded again" in kinds
    assert data["step"].startswith("Net (script.py:7") and data["costs"][0]["ms"] > 0
    assert (
        "has shape (5, 4)" in data["costs"][0]["what"] and "script.py:" in data["costs"][0]["place"]
    )
    kernel = next(k for k in data["kernels"] if k["calls"])
    assert kernel["read"] > 0 and kernel["written"] > 0
    assert 0 < kernel["fastest"] <= kernel["seconds"] / kernel["calls"]
    assert "for (int64_t" in kernel["code"] and "script.py:8" in kernel["origins"][0]
    whats = [node["what"] for node in data["graphs"][0]["nodes"]]
    assert {"placeholder", "linear", "relu", "exp", "output"} <= set(whats)


def clicked(page, script):
    """What `script`, run in the page after it was loaded, puts into `out`."""
    text, folder = page
    run = f"<script>const out = []; {script}; document.title = JSON.stringify(out)</script></body>"
    (folder / "clicked.html").write_text(text.replace("</body>", run))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += ["--virtual-time-budget=2000", f"--user-data-dir={folder}/profile"]
    done = subprocess.run(
        [*command, f"file://{folder}/clicked.html"], capture_output=True, text=True, timeout=120
    )
    title = re.search("<title>(.*?)</title>", done.stdout, re.DOTALL)
    return json.loads(html.unescape(title[1]))


CLICKS = """
    const visible = () => document.querySelector("section.on").id;
    const tab = name => document.querySelector(`[data-to=${name}]`).click();
    const tip = () => by("tip").textContent;
    out.push(visible());
    tab("source");
    out.push(visible(), document.querySelectorAll("#lines .num").length, document.images.length);
    document.querySelector(".tag.break").click();
    out.push(by("note").textContent.includes("DYN"));
    const mark = document.querySelector(".tag.kernel");
    mark.onmousemove({clientX: 1, clientY: 1});
    out.push(tip().startsWith("kernel 0"));
    tab("graphs");
    const before = by("world").getAttribute("transform");
    by("drawing").dispatchEvent(new WheelEvent("wheel", {deltaY: -200, clientX: 300, clientY: 300}));
    out.push(before !== by("world").getAttribute("transform"));
    const node = [...document.querySelectorAll(".node")].find(n => n.textContent === "exp");
    node.dispatchEvent(new MouseEvent("mousemove", {clientX: 5, clientY: 5}));
    out.push(tip().includes("script.py:8"));
    node.dispatchEvent(new MouseEvent("click"));
    out.push(visible(), document.querySelector(".hit").textContent.includes("relu().exp()"));
    tab("timeline");
    out.push(document.querySelectorAll("rect.event").length);
    kernel(0);
    out.push(visible(), by("kernel0").open);
    document.querySelector("#kernel0 button").click();
    out.push(visible());
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_clicks(page):
    assert clicked(page, CLICKS) == [
        "overview", "source", 14, 0, True, True, True, True, "source", True, 4, "kernels", True, "source",
    ]  # fmt: skip


def test_a_large_run_stays_small_and_says_so(tmp_path):
    kernel = {"code": "x" * 12_000, "origins": [], "name": "k", "graph": "g", "read": 1}
    kernel |= {"written": 1, "calls": 0, "seconds": 0.0, "fastest": 0.0, "on_gpu": False}
    event = {"name": "f", "at": 0.0, "seconds": 1.0, "kind": "call", "why": "", "memory": 1.0}
    nodes = [(f"n{i}", "mul", "a.py:1: " + "y" * 90, [f"n{i - 1}"]) for i in range(2000)]
    collector = types.SimpleNamespace(
        kernel_list=lambda: [dict(kernel) for _ in range(600)],
        graphs=[{"title": f"graph {i}", **graph_layout.placed(nodes)} for i in range(30)],
        events=[event] * 4000,
        left_out=7,
    )
    report_page.write_report(str(tmp_path / "out.html"), ["s.py"], [], collector)
    text = (tmp_path / "out.html").read_text()
    assert len(text) < 5_000_000 and "Shortened, to stay small: guards, code" in text


def test_a_graph_is_drawn_below_what_it_takes():
    nodes = [
        ("a", "placeholder", "", []),
        ("b", "placeholder", "", []),
        ("c", "relu", "", ["a"]),
        ("d", "add", "", ["c", "b"]),
        ("e", "output", "", ["d"]),
    ]
    drawn = graph_layout.placed(nodes)
    rows = [node["y"] for node in drawn["nodes"]]
    assert rows == [0, 1, 1, 2, 3] and drawn["edges"] == [(0, 2), (2, 3), (1, 3), (3, 4)]
    assert len({(node["x"], node["y"]) for node in drawn["nodes"]}) == 5


def test_a_report_that_cannot_be_written_is_said_before_the_run(tmp_path):
    (tmp_path / "s.py").write_text("print('ran')")
    command = [sys.executable, "-c", MAIN, "--report", "no/out.html", "s.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "") and "cannot be written" in done.stderr


def test_a_report_of_a_run_without_torch(tmp_path):
    (tmp_path / "s.py").write_text("print('ran')")
    command = [sys.executable, "-c", MAIN, "--report", "out.html", "s.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    assert "Nothing was captured" in (tmp_path / "out.html").read_text()


def test_a_profile_names_kernels_after_their_lines(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT) + "print('ran')\n")
    command = [sys.executable, "-c", MAIN, "--profile", "out.json", "script.py"]
    done = forked.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    assert f"dynrun: --profile: {tmp_path}/out.json" in done.stderr.splitlines()
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    names = {str(event.get("name")) for event in events}
    assert any(name.startswith("dynfix::") and "script.py:8" in name for name in names)
    assert "aten::linear" in names
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "script.py"]
