"""Python processes in which torch is loaded already: a server imports it once, and forks for each.

`run` takes what `subprocess.run` takes. For tests of what a process does with torch, not of how it
comes to load it: those start one of their own.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import types

STREAMS = ("stdin", "stdout", "stderr")


def run(
    command, *, cwd=None, env=None, input=None, capture_output=False, check=False, loaded="torch",
    **given,
):  # fmt: skip
    """`subprocess.run` of `[sys.executable, ...]` where the module `loaded` is. Unnamed streams are
    inherited; what is captured is text."""
    assert command[0] == sys.executable, command
    files = {name: given.pop(name, None) for name in STREAMS}
    assert given.keys() <= {"text", "errors"}, given
    pipes = [n for n in STREAMS[1:] if capture_output or files[n] == subprocess.PIPE]
    with contextlib.ExitStack() as stack:
        for name in (*pipes, *(["stdin"] if input is not None else ())):
            files[name] = stack.enter_context(tempfile.TemporaryFile())
        if input is not None:
            files["stdin"].write(input.encode())
            files["stdin"].seek(0)
        request = {
            "arguments": [os.fspath(word) for word in command[1:]],
            "folder": os.fspath(cwd or os.getcwd()),
            "environment": dict(os.environ if env is None else env),
        }
        numbers = [
            place if (file := files[n]) is None else file.fileno()
            for place, n in enumerate(STREAMS)
        ]
        done = subprocess.CompletedProcess(command, _ask(_server(loaded), request, numbers))
        for name in pipes:
            files[name].seek(0)
            setattr(done, name, files[name].read().decode(errors=given.get("errors", "strict")))
    if check:
        done.check_returncode()
    return done


def _ask(ours, request, numbers):
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    text = json.dumps(request).encode()
    socket.send_fds(ours, [len(text).to_bytes(8, "big")], numbers)
    ours.sendall(text)
    answer = ours.recv(64)
    assert answer, "the server has ended"
    return int(answer)


@functools.cache
def _server(loaded):
    """The socket to this process's server, which ends when that is closed."""
    ours, theirs = socket.socketpair()
    env = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(theirs.fileno()), loaded]
    process = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()])
    theirs.close()
    atexit.register(lambda: (ours.close(), process.wait()))
    return ours


def _serve(server):
    """Fork for each request; leaves, in the child alone, with the arguments to run."""
    while True:
        size, numbers, _, _ = socket.recv_fds(server, 8, len(STREAMS))
        if not size:
            os._exit(0)
        request = json.loads(server.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
        child = os.fork()
        if not child:
            server.close()
            return _settle(request, numbers)
        for number in numbers:
            os.close(number)
        _, status = os.waitpid(child, 0)
        server.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _settle(request, numbers):
    """Be the process that was asked for; its arguments."""
    for place, number in enumerate(numbers):
        os.dup2(number, place)
        os.close(number)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for folder in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if folder and folder not in sys.path:
            sys.path.insert(1, folder)
    return request["arguments"]


def _run_as_python(first, *rest):
    """The command's arguments as the interpreter takes them: `-c`, `-m`, or a script."""
    if first == "-m":
        sys.argv[:] = rest
        sys.path[0] = os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if first == "-c":
        code, names = compile(rest[0], "<string>", "exec"), {}
        sys.argv[:], sys.path[0] = ["-c", *rest[1:]], ""
    else:
        with open(first, "rb") as file:
            code, names = compile(file.read(), first, "exec"), {"__file__": os.path.abspath(first)}
        sys.argv[:], sys.path[0] = [first, *rest], os.path.dirname(os.path.abspath(first))
    vars(main).update(names)
    exec(code, vars(main))


_statuses = []  # of a run that has ended, its exit status


def _leave_at_once():
    """At the end of all that is done at exit: what else the interpreter does, taking apart each
    module that is shared, takes longer than most of the runs."""
    if _statuses:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_statuses[-1] & 0xFF)


def _run(arguments):
    try:
        _run_as_python(*arguments)
    except SystemExit as end:
        _statuses.append(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise
    except Exception:
        _statuses.append(1)
        raise
    _statuses.append(0)


if __name__ == "__main__":
    atexit.register(_leave_at_once)
    importlib.import_module(sys.argv[2])
    gc.freeze()  # what is shared is not gone through, and so not copied, by each of them
    _run(_serve(socket.socket(fileno=int(sys.argv[1]))))
