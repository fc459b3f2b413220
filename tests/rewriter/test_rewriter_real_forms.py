"""With no recording at work, the compiler's own operators do exactly what Python does, too."""

import pytest
from comparing import feature_names, load, observe, path_of, rewrite_all
from dynfix.rewriter.tracing_ops.operators import Forms


@pytest.mark.parametrize("file", ["expressions", "statements", "exceptions", "functions"])
def test_every_feature(file):
    plain, rewritten = load(file), load(file)
    rewrite_all(rewritten, Forms)
    for name in feature_names(plain):
        expected = observe(getattr(plain, name), path_of(file))
        assert observe(getattr(rewritten, name), path_of(file)) == expected, name
