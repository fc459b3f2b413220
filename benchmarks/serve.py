"""Serving a compiled model: seconds of a fresh process from `import torch` to the first answer, of
a dynfix package, of torch's aot_compile and AOTInductor files, and of warm starts of compilers.

    python benchmarks/serve.py [--models bert llama] [--ways ...] [--rounds N]

BERT and Llama of 12 layers, 256 wide, random weights, 4 sequences of 64 tokens, one thread, no
gradients. A file is loaded without the model; for warm starts, importing transformers and making
the model are not counted. Processor seconds; `clock` is time that passed, `size` of the file in MB,
`made` the processor seconds of its making, compilers included.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from start import MODELS, as_installed, processor


def model_and_inputs(name):
    import torch

    torch.manual_seed(0)
    model, given = MODELS[name](12)
    return model.eval(), {"input_ids": torch.randint(1024, (4, 64)), **given}


def make_package(model, given, path):
    import dynfix

    fewer = {name: value[:3, :48].contiguous() for name, value in given.items()}
    dynfix.package(model, path, [((), fewer), ((), given)])


def serve_package(model, given, path):
    import dynfix

    return dynfix.load(path)(**given)


def make_aot_compile(model, given, path):
    import torch

    compiled = torch.compile(model, fullgraph=True)  # with dynamic=True it fails
    compiled.forward.aot_compile(((), given)).save_compiled_function(path)


def serve_aot_compile(model, given, path):
    import torch

    with open(path, "rb") as file:
        loaded = torch.compiler.load_compiled_function(file)
    return loaded(model, **given)


def make_aot_inductor(model, given, path):
    import torch

    class Logits(torch.nn.Module):  # other outputs cannot be loaded without transformers
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids):
            return self.model(input_ids=input_ids).logits

    sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    shapes = dict.fromkeys(given, sizes)
    exported = torch.export.export(Logits().eval(), (), given, dynamic_shapes=shapes)
    torch._inductor.aoti_compile_and_package(exported, package_path=path)


def serve_aot_inductor(model, given, path):
    import torch

    return torch._inductor.aoti_load_package(path)(**given)


def warm_torch(model, given, path):
    import torch

    return torch.compile(model)(**given)


def warm_dynfix(model, given, path):
    import dynfix

    return dynfix.compile(model)(**given)


# name: (makes the file, serves from it, whether it needs the model)
WAYS = {
    "dynfix package": (make_package, serve_package, False),
    "aot_compile": (make_aot_compile, serve_aot_compile, True),
    "AOTInductor": (make_aot_inductor, serve_aot_inductor, False),
    "dynfix.compile, warm": (None, warm_dynfix, True),
    "torch.compile, warm": (None, warm_torch, True),
}


def one(arguments):
    """In the process that is measured."""
    import torch

    torch.set_num_threads(1)
    name, way = arguments.models[0], arguments.ways[0]
    make, serve, needs_model = WAYS[way]
    making = arguments.one == "make"
    model, given = None, {"input_ids": torch.randint(1024, (4, 64))}
    if making or needs_model:
        model, given = model_and_inputs(name)
    start, clock = processor(), time.perf_counter()
    with torch.no_grad():
        if making and make is not None:
            make(model, given, arguments.path)
        else:
            serve(model, given, arguments.path)
    return {"seconds": processor() - start, "clock": time.perf_counter() - clock}


def process(name, way, path, folder, what):
    environment = {
        **os.environ,
        "DYNFIX_CACHE_DIR": os.path.join(folder, "dynfix"),
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    command = [sys.executable, __file__, "--one", what, "--path", path]
    done = subprocess.run(
        [*command, "--models", name, "--ways", way],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])


def measured(name, way, rounds):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.pt2")
        made = process(name, way, path, folder, "make")
        runs = [process(name, way, path, folder, "serve") for _ in range(rounds)]
        size = round(os.path.getsize(path) / 1e6, 1) if os.path.exists(path) else None
    found = [
        round(statistics.median(run[part] for run in runs), 2) for part in ("seconds", "clock")
    ]
    return [name, way, *found, round(made["seconds"], 1), size]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=["bert", "llama"])
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=[*WAYS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments)))
        return
    as_installed()
    for name in arguments.models:
        for way in arguments.ways:
            try:
                row = measured(name, way, arguments.rounds)
            except RuntimeError as error:
                row = [name, way, None, None, None, str(error)[:120]]
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
