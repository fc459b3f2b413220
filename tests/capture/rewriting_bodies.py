"""Bodies of a forward in which a tensor decides."""

# Bodies of a forward: the codemod proves each of them, or writes the same text when it is asked for
# unsafe fixes. (Which device a tensor is on the text often cannot say; then the codemod writes
# `.to(h.device)` around the condition, and the compiler does not.)
SAME_TEXT = {
    "if without else": """
        y = torch.relu(x) + 1
        if y.mean() > 1.5:
            y = y * 2
        return y + 1
        """,
    "if with else": """
        y = torch.relu(x)
        if y.sum() > 1:  # grows
            z = y * 2
        else:
            z = y - 3
        return z
        """,
    "elif": """
        s = x.sum() * 1
        if s > 1:
            s = s - 1
        elif s > 0:
            s = s * 2
        else:
            s = -s
        return s * 3
        """,
    "returns": """
        y = torch.relu(x)
        if y.sum() > 1:
            return y + 1
        else:
            return y - 1
        """,
    "early return": """
        y = torch.relu(x)
        if y.sum() > 1:
            return y + 1
        return y - 1
        """,
    "calls of both sides": """
        if torch.rand(()) > 0.5:
            return self.h(x) + 1
        else:
            return self.h(x) - 1
        """,
    "item": """
        y = torch.relu(x) + 1
        if y.sum().item() > 15:
            y = y * 0.5
        return y + 1
        """,
    "not": """
        y = torch.relu(x) + 1
        if not (y > 1).all():
            y = y + 2
        return y + 1
        """,
    "several names": """
        y = torch.relu(x) + 1
        z = y - 1
        if y.sum() > 15:
            y = y + 2
            z = z + 3
        return y + z
        """,
    "and of tensors": """
        y = torch.relu(x) + 1
        if (y > 1).all() and (y < 9).all():
            y = y + 2
        return y + 1
        """,
    "chained comparison": """
        y = torch.relu(x) + 1
        s = y.sum() / 12
        if 1.5 < s <= 9:
            y = y + 2
        return y + 1
        """,
    "chained comparison as a mask": """
        y = torch.relu(x) + 1
        s = y.mean()
        return torch.where(1.5 < s <= 9, y * 2, y + 1)
        """,
    "a number that no dtype has": """
        y = torch.relu(x) + 1
        if torch.rand(()).item() > 0.3:
            y = y + 2
        return y + 1
        """,
    "a Python condition, or tensors": """
        y = torch.relu(x) + 1
        if not self.training or (y > 9).any() or (y > 1).all():
            y = y + 2
        return y + 1
        """,
    "a Python condition, then a return": """
        y = torch.relu(x) + 1
        if self.training and y.sum() > 15:
            return y + 2
        return y + 1
        """,
    "a Python condition, then a side": """
        y = torch.relu(x) + 1
        if self.training and y.sum() > 15:
            z = y + 2
        else:
            z = y * 3
        return z + 1
        """,
    "a Python condition last": """
        y = torch.relu(x) + 1
        if (y > 1).all() and (y < 9).all() and self.training:
            y = y + 2
        return y + 1
        """,
    "a Python condition first": """
        y = torch.relu(x) + 1
        if self.training and y.sum() > 15:
            y = y + 2
        return y + 1
        """,
    "ternary": """
        y = torch.relu(x) + 1
        z = y * 2 if y.sum() > 15 else y / 3
        return z + 1
        """,
    "a number read before": """
        y = torch.relu(x) + 1
        m = y.sum().item()
        if m > 15:
            y = y * 0.5
        return y + 1
        """,
    "numbers read before": """
        y = torch.relu(x) + 1
        low, high = y.min().item(), float(y.max())
        if low > 1 or high > 3:
            y = y * 0.5
        return y + 1
        """,
    "a truth read before": """
        y = torch.relu(x) + 1
        grown = bool(y.sum() > 15)
        if grown:
            y = y * 0.5
        return y + 1
        """,
    "the opposite of a tensor": """
        y = torch.relu(x) + 1
        small = not (y > 1).all()
        if small:
            y = y * 0.5
        return y + 1
        """,
    "a conjunction kept": """
        y = torch.relu(x) + 1
        within = (y > 1).all() and (y < 9).all()
        if not within:
            y = y * 0.5
        return y + 1
        """,
    "a choice of numbers": """
        y = torch.relu(x) + 1
        w = 2.0 if y.sum() > 15 else 0.5
        return y * w
        """,
    "masked sum": """
        n = (torch.relu(x) * 10).long()
        n[n >= 3] += 1
        return n
        """,
    "masked rows": """
        y = torch.relu(x) + 1
        z = x * 3
        mask = y > 1
        y[mask] = z[mask]
        return y * 1
        """,
}
# One graph without gradients: the side that is not taken is proved on fake tensors.
PROVED = {
    "masked fill": """
        y = self.h(x) @ x.t()
        mask = torch.ones(3, 3, dtype=torch.bool).tril()
        if mask is not None and (x > 0).all():
            y = y.masked_fill(~mask[None, :, :][0], float("-inf"))
        return y.softmax(-1)
        """,
    "division": "y = torch.relu(x)\nif y.sum() > 1:\n    y = y / y.sum()\nreturn y + 1",
    "layer": "y = torch.relu(x)\nif y.sum() > 1:\n    y = self.h(y)\nreturn y + 1",
    "softmax": "y = x * 2\nif y.sum() > 1:\n    y = F.softmax(y, -1)\nreturn y + 1",
    "a number that no dtype has": """
        y = torch.relu(x) + 1
        limit = 1.1
        if y.mean().item() > limit:
            y = y + 2
        return y + 1
        """,
    "clamp to finfo": """
        y = x * 2
        if torch.isinf(y).any() or torch.isnan(y).any() or y.sum() > 1:
            c = torch.finfo(y.dtype).max - 1000
            y = torch.clamp(y, min=-c, max=c)
        return y + 1
        """,
    "masked power": """
        y = (x - 2) ** 2
        y[y > 2] = torch.pow(y[y > 2], 0.1) * 2 ** 0.9
        return y.sum()
        """,
    "masked product": """
        out = torch.zeros(x.size())
        mask = x > 0
        out[mask] = (x[mask] - 3) * x[mask]
        return out
        """,
}


# The side that is not taken would turn its zero gradient into NaN, but for the ones that it is given.
SHELTERED = {
    "division by nothing": """
        n = torch.relu(x).sum()
        y = self.h(x)
        if n > 0:
            y = y / n
        return y + 1
        """,
    "root and logarithm": """
        y = self.h(x) * x
        if y.min() >= 0:
            return y.sqrt()
        return (-y).log() + (y * y).relu()
        """,
    "a count": """
        n = (x > 0).sum()
        y = self.h(x)
        if n == 0:
            return y.sum() * 0
        return y.sum() / n
        """,
}
# Somebody could tell: the outcome stays, and is right. (body, with gradients)
KEPT = {
    "input returned": ("if x.sum() > 0:\n    x = x * 2\nreturn x", False),
    "written later": (
        "y = x * 1\nz = y\nif x.sum() > 0:\n    y = y * 2\ny += 1\nreturn y, z",
        False,
    ),
    "both returned": ("y = x * 1\nz = y\nif x.sum() > 0:\n    y = y * 2\nreturn y, z", False),
    "compared": (
        "y = x * 1\nz = y\nif x.sum() > 0:\n    y = y * 2\nreturn y + (1 if y is z else 2)",
        False,
    ),
    "view of an input returned": (
        "y = x[0]\nif x.sum() > 0:\n    y = y * 2\nreturn y",
        False,
    ),
    "draws": ("y = x * 1\nif x.sum() > 0:\n    y = torch.rand_like(y)\nreturn y + 1", False),
    "writes": ("y = x * 1\nif x.sum() > 0:\n    y = y.add_(1)\nreturn y + 1", False),
    "shapes differ": ("y = x * 1\nif x.sum() > 0:\n    y = y.sum()\nreturn y + 1", False),
    "layouts differ": (
        "y = x * 1\nif x.sum() > 0:\n    y = (y * 2).t().contiguous().t()\nreturn y",
        False,
    ),
    "dtypes differ": ("y = x * 1\nif x.sum() > 0:\n    y = y.double()\nreturn y + 1", False),
    "may raise": (
        "y = x.long()\nif x.sum() > 0:\n    y = 7 // y\nreturn y + 1",
        False,
    ),
    "index": (
        "y = x * 1\nif x.sum() > 0:\n    y = y[y.long().clamp(0, 2)[:, 0]]\nreturn y + 1",
        False,
    ),
    "rough backward, at ones too": (
        "y = self.h(x)\nif x.sum() > 0:\n    y = (1 - y).square().log()\nreturn y + 1",
        True,
    ),
    "rough backward of a layer": (
        "y = self.h(x)\nif x.sum() > 0:\n    y = self.h(y) / y.sum()\nreturn y + 1",
        True,
    ),
    "other leaves": ("y = x * 1\nif x.sum() > 0:\n    y = self.h(x)\nreturn y + 1", True),
    "number returned": (
        "y = x * 2\nm = y.sum().item()\nif m > 1:\n    y = y + 1\nreturn y + 1, m",
        False,
    ),
    "number in a closure": (
        "y = x * 2\nm = y.sum().item()\nf = lambda: m\nif m > 1:\n    y = y + 1\nreturn y * f()",
        False,
    ),
    "number of a tensor that is written": (
        "y, z = x.sum() + 0, x * 1\nv = y.view(())\nm = float(v)\ny.zero_()\n"
        "if m > 1:\n    z = z + 1\nreturn z + 1",
        False,
    ),
    "truth of a tensor that is written": (
        "c, z = x.sum() > 0, x * 1\nb = bool(c)\nc.logical_not_()\nif b:\n    z = z + 1\nreturn z",
        False,
    ),
    "truth that names are asked for": (
        "z = x * 1\nb = bool(z.sum() > 0)\nif b:\n    z = z + 1\nreturn z + len(locals())",
        False,
    ),
    "choice of numbers returned": (
        "w = 1.0 if x.sum() > 0 else -1.0\nreturn x * w, w",
        False,
    ),
    "choice of numbers beside integers": (
        "n = (x * 3).long()\nw = 2 if x.sum() > 0 else 3\nreturn n * w",
        False,
    ),
    "choice of long numbers": ("w = 0.1 if x.sum() > 0 else 0.7\nreturn x * w", False),
    "test that draws": (
        "z = x * 1\nif z.sum() > 1 and torch.rand(()) > 0.5:\n    z = z + 1\n"
        "return z + torch.rand(())",
        False,
    ),
    "Python asks after a tensor": (
        "z = x * 1\nif z.sum() > 1 and self.state_dict():\n    z = z + 1\nreturn z + 1",
        False,
    ),
    "chain of calls": (
        "z = x * 1\nif 0 < torch.rand(()) < 0.5:\n    z = z + 1\nreturn z + torch.rand(())",
        False,
    ),
    "user's function": (
        "y = x * 1\nf = lambda t: t * 2\nif x.sum() > 0:\n    y = f(y)\nreturn y + 1",
        False,
    ),
}
