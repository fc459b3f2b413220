"""`dynrun script.py` beside `python script.py`, without torch: what a script can see or leave
behind is compared."""

import os
import signal
import subprocess
import sys
import textwrap
import zipfile

import pytest
from dynfix.rewriter.dynrun import worker_launch

DYNRUN = "import sys; from dynfix.rewriter.dynrun.main import main; sys.exit(main())"


def run(command, folder, **kwargs):
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, **kwargs
    )
    return done.returncode, done.stdout, done.stderr


def dynrun(arguments, folder, **kwargs):
    """As the console script does it: that is a file of three lines in a folder of its own."""
    script = folder / "bin" / "dynrun"
    script.parent.mkdir(exist_ok=True)
    script.write_text(DYNRUN)
    return run([str(script), *arguments], folder, **kwargs)


def both(text, folder, *arguments, name="script.py"):
    """Run `text` under both; they must agree. Gives (exit status, stdout, stderr)."""
    (folder / name).write_text(textwrap.dedent(text))
    python = run([name, *arguments], folder)
    assert dynrun([name, *arguments], folder) == python
    return python


def test_what_a_script_sees_of_itself(tmp_path):
    text = """
        import sys, os, inspect
        print(sorted(globals()), type(__builtins__), __name__, __file__, __spec__, __package__, __cached__)
        print(type(__loader__), __loader__.get_filename(), sys.modules["__main__"].__dict__ is globals())
        print(sys.argv, sys.path[0], os.getcwd(), [p for p in sys.path if p.endswith("bin")])
        class A:
            x: int = 1
        print(inspect.getsource(A), A.__module__, __annotations__)
    """
    status, out, _ = both(text, tmp_path, "--mode", "x", "-m", "--", "--version")
    assert status == 0 and "'--mode', 'x', '-m', '--', '--version'" in out


def test_a_script_in_another_folder_imports_its_neighbours(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "neighbour.py").write_text("print('neighbour', __file__)")
    both("import neighbour, sys; print(sys.argv, __file__)", tmp_path, name="inner/script.py")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('went wrong')", 1),
        ("import sys; sys.exit()", 0),
        ("raise SystemExit([1, 2])", 1),
        ("exit(4)", 4),
        ("import os; os._exit(5)", 5),
        ("def f():\n  g()\ndef g():\n  raise ValueError('x')\nf()", 1),
        ("try:\n  1/0\nexcept ZeroDivisionError as e:\n  raise KeyError('k') from e", 1),
        ("try:\n  1/0\nexcept ZeroDivisionError as e:\n  raise KeyError('k')", 1),
        ("x = (1,\n", 1),
        ("print('déjà')\nx = = 2\n", 1),
        ("# -*- coding: latin-1 -*-\nprint(1)\nimport nothing_there", 1),
        ("import atexit; atexit.register(print, 'at exit'); print('first'); raise RuntimeError", 1),
        (
            (
                "import sys\nsys.excepthook = lambda *a: print('hook', a[0], a[2].tb_lineno)\nraise"
                " RuntimeError('y')"
            ),
            1,
        ),
        (
            (
                "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.2),"
                " print('late'))).start()\n1/0"
            ),
            1,
        ),
        ("import traceback\ntry:\n  int('x')\nexcept ValueError: traceback.print_exc()", 0),
        ("assert False, 'no'", 1),
        ("from __future__ import annotations\nx: undefined = 3\nprint(__annotations__)", 0),
    ],
)
def test_exit_status_output_and_traceback(tmp_path, text, status):
    assert both(text, tmp_path)[0] == status


def test_keyboard_interrupt_ends_by_the_signal(tmp_path):
    assert (
        both("import atexit; atexit.register(print, 'end')\nraise KeyboardInterrupt", tmp_path)[0]
        == -signal.SIGINT
    )


def test_an_interrupt_is_remembered_through_the_summary(tmp_path):
    (tmp_path / "script.py").write_text("raise KeyboardInterrupt")
    status, _, error = dynrun(["--summary", "script.py"], tmp_path)
    assert status == -signal.SIGINT and "dynrun: " in error


def test_standard_input(tmp_path):
    (tmp_path / "script.py").write_text("import sys; print(sys.stdin.read()[::-1])")
    wanted = run(["script.py"], tmp_path, input="abc")
    assert dynrun(["script.py"], tmp_path, input="abc") == wanted


def test_objects_of_main_pickle_and_spawn(tmp_path):
    text = """
        import multiprocessing, pickle
        class A:
            def __init__(self, k): self.k = k
        def work(a): return A(a.k + 1)
        if __name__ == "__main__":
            print(pickle.loads(pickle.dumps(A(1))).k)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print([a.k for a in pool.map(work, [A(1), A(2)])])
    """
    assert both(text, tmp_path)[1] == "1\n[2, 3]\n"


def test_dash_m(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "__main__.py").write_text("from . import other\n")
    (tmp_path / "pkg" / "other.py").write_text(
        "import sys\nprint(sys.argv, sys.path[0], __name__, __file__, __package__, __spec__ and"
        " __spec__.name)\nif len(sys.argv) > 2: raise ValueError(3)"
    )
    for arguments in (["-m", "pkg"], ["-m", "pkg.other", "-x"], ["-m", "pkg.other", "-x", "--y"]):
        assert dynrun(arguments, tmp_path) == run(arguments, tmp_path)


def test_dash_m_of_what_is_not_there(tmp_path):
    status, out, error = dynrun(["-m", "not_there"], tmp_path)
    assert (status, out) == (1, "") and "No module named not_there" in error


def test_folder_and_zip_with_a_main(tmp_path):
    text = "import sys, helper\nprint(sys.argv, sys.path[0], __name__)\n1/0"
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text(text)
    (tmp_path / "app" / "helper.py").write_text("")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as file:
        file.writestr("__main__.py", text)
        file.writestr("helper.py", "")
    for name in ("app", "app.zip"):
        assert dynrun([name, "a"], tmp_path) == run([name, "a"], tmp_path)


def test_a_script_that_is_not_there(tmp_path):
    status, out, error = dynrun(["nothing.py"], tmp_path)
    assert (status, out) == (2, "")
    assert (
        error
        == f"dynrun: can't open file '{tmp_path}/nothing.py': [Errno 2] No such file or directory\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no script given"),
        (["-m"], "-m needs the name of a module"),
        (["-c"], "-c needs code"),
        (["--options", "fusion", "s.py"], "'fusion' is not NAME=VALUE"),
        (["--options", "fusion=7", "s.py"], "fusion must be True or False, not 7"),
        (["--options", "no=1", "s.py"], "unknown option 'no': use one of"),
        (["--compile", "all", "s.py"], "invalid choice: 'all'"),
        (["--nproc-per-node", "0", "s.py"], "'0' is no number of processes"),
        (["--emit-source", "/dev/null/x", "s.py"], "/dev/null/x cannot be made: Not a directory"),
        (["--overhead", "-4", "s.py"], "'-4' is no percentage"),
        (["--backend", "nothing", "s.py"], "unknown backend 'nothing': use one of"),
        (["--mode=nothing", "s.py"], "unknown mode 'nothing': use one of"),
        (["--nothing", "s.py"], "unrecognized arguments: --nothing"),
        (["--eager-calls", "x", "s.py"], "'x' is no number of calls"),
        (["-u", "-W"], "-W needs a value"),
    ],
)
def test_wrong_arguments(tmp_path, arguments, message):
    (tmp_path / "s.py").write_text("print('ran')")
    status, out, error = dynrun(arguments, tmp_path)
    assert (status, out) == (2, "") and message in error
    assert len(error.splitlines()) == 2


def test_own_options_before_the_script_only(tmp_path):
    (tmp_path / "s.py").write_text("import sys; print(sys.argv)")
    own = [
        "--backend",
        "eager",
        "--mode",
        "default",
        "--no-dynamic",
        "--fullgraph",
        "--eager-calls",
        "2",
        "--disable",
    ]
    assert dynrun([*own, "s.py", "--disable"], tmp_path) == (0, "['s.py', '--disable']\n", "")


OF_THE_INTERPRETER = """
import sys
flags = sys.flags
print(__debug__, flags.optimize, flags.dev_mode, flags.bytes_warning, flags.dont_write_bytecode)
print(sys.warnoptions, sorted(sys._xoptions), sys.stdout.write_through, sys.argv)
"""


@pytest.mark.covering
@pytest.mark.parametrize(
    "options",
    [["-O"], ["-OO", "-W", "ignore"], ["-Wdefault", "-X", "faulthandler"], ["-uB", "-Xdev", "-bb"]],
)
@pytest.mark.parametrize("script", [["s.py", "-O", "-W"], ["-c", OF_THE_INTERPRETER, "-X"]])
def test_options_of_the_interpreter_are_pythons(tmp_path, options, script):
    (tmp_path / "s.py").write_text(OF_THE_INTERPRETER)
    python = run([*options, *script], tmp_path)
    assert dynrun([*options, "-q", *script], tmp_path) == python
    assert dynrun(["-q", *options, *script], tmp_path) == python


def test_explain_without_torch(tmp_path):
    (tmp_path / "s.py").write_text("print('ran')")
    assert dynrun(["--explain", "s.py"], tmp_path) == (0, "ran\n", "dynrun: 0 captured\n")


def test_code_on_the_command_line(tmp_path):
    text = "import sys; print(sys.argv, sys.path[0], __name__, '__file__' in globals())"
    for code in (text, text + "\ndef f():\n  raise ValueError(3)\nf()", "x = = 2"):
        arguments = ["-c", code, "-q", "--version"]
        assert dynrun(arguments, tmp_path) == run(arguments, tmp_path)


def test_a_script_from_standard_input(tmp_path):
    text = "import sys, inspect\ndef f(): return 1\nprint(sys.argv, sys.path[0], f())\n1/0"
    *same, error = dynrun(["-", "-x"], tmp_path, input=text)
    *expected, plain = run(["-", "-x"], tmp_path, input=text)
    assert same == expected
    # from Python 3.13 on the traceback shows the lines of the text as well, which python leaves out
    assert [line for line in error.splitlines() if line in plain] == plain.splitlines()


def test_python_dash_m_dynfix_run(tmp_path):
    (tmp_path / "s.py").write_text("import sys; print(sys.argv, sys.path[0])")
    assert run(["-m", "dynfix.run", "s.py", "-x"], tmp_path) == run(["s.py", "-x"], tmp_path)


def test_dynfix_run_loads_no_torch(tmp_path):
    code = "import dynfix.run, sys; print('torch' in sys.modules, 'libcst' in sys.modules)"
    assert run(["-c", code], tmp_path)[1] == "False False\n"


def test_python_dash_m_dynfix(tmp_path):
    status, out, _ = run(["-m", "dynfix", "--version"], tmp_path)
    assert (status, out.split()[0]) == (0, "dynfix")


def test_summary_without_torch(tmp_path):
    (tmp_path / "s.py").write_text("print('ran')")
    status, out, error = dynrun(["--summary", "s.py"], tmp_path)
    assert (status, out) == (0, "ran\n")
    assert error.startswith("dynrun: 0 functions, 0 graphs, 0 breaks, 0 recompiles, 0.0 s of")
    assert dynrun(["--summary", "-q", "s.py"], tmp_path) == (0, "ran\n", "")


def test_workers_of_a_launcher_run_under_dynrun(tmp_path, monkeypatch):
    """What torchrun's launcher is told, without torchrun."""
    monkeypatch.setenv("PYTHON_EXEC", "python")
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    worker_launch.let_workers_use(["--nproc-per-node", "2", "--summary", "--backend=eager"])
    (tmp_path / "w.py").write_text("import sys; print(sys.argv, sys.stdout.write_through)")
    for flags in ([], ["-u"]):
        command = [os.environ["PYTHON_EXEC"], *flags, "w.py", "-u"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout == f"['w.py', '-u'] {bool(flags)}\n", done.stderr
        assert done.stderr.startswith("dynrun: 0 functions")


def test_which_runs_start_workers():
    assert worker_launch.is_launcher(["-m", "torch.distributed.run", "s.py"])
    assert worker_launch.is_launcher(["/opt/bin/torchrun", "s.py"])
    assert not worker_launch.is_launcher(["-m", "pkg.train"])
    assert not worker_launch.is_launcher(["train.py"])
    assert worker_launch.standalone("2", ["-m", "pkg"]) == [
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "pkg",
    ]  # fmt: skip
