"""Building against the headers of the torch that is installed."""

from pathlib import Path

import torch


def torch_flags() -> dict[str, tuple[str, ...]]:
    """What `build_extension` needs for a source that includes torch's headers."""
    home = Path(torch.__file__).parent
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    flags = ("-std=c++20", "-w", f"-isystem{home / 'include'}", f"-D_GLIBCXX_USE_CXX11_ABI={abi}")
    link = (f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{home / 'lib'}")
    return {
        "flags": flags,
        "link": link,
        "salt": (torch.__version__, str(torch.version.git_version)),
    }
