"""Lines of random graphs: text with holes for operands of a kind.

A template starts with the kinds of {x}, {y} and {z}: f a float, i an integer, b a bool, c a complex
number, n float or integer, r anything real, a anything. {d} is a dimension, {k} a small number,
{s} a scalar, {t} a type, {v} the name of the result, where the line binds it. A ~ behind the kinds:
what is made is rounded by the order of a sum, or by a library.
"""

from .more_grammar import LAYER, LIBRARY, MIXED, OTHER_WRITE, PICK, UNDER

KINDS = {
    "f": "fhd2",
    "i": "iluws",
    "b": "b",
    "c": "c",
    "n": "fhd2iluws",
    "r": "fhd2iluwsb",
    "a": "fhd2iluwsbc",
    "l": "l",
}
TYPES = {
    "f": "torch.float32",
    "d": "torch.float64",
    "h": "torch.bfloat16",
    "2": "torch.float16",
    "l": "torch.int64",
    "i": "torch.int32",
    "u": "torch.uint8",
    "w": "torch.int8",
    "s": "torch.int16",
    "b": "torch.bool",
    "c": "torch.complex64",
}

# Eager's own rounding is all that happens: the result is the same to the last bit.
EXACT = """
f {x} * {s} ; n {x} + {k} ; n {k} - {x} ; n torch.neg({x}) ; n torch.abs({x}) ; f torch.relu({x})
f torch.clamp({x}, min={s}) ; f torch.clamp({x}, -{k}, {k}) ; n torch.clamp({x}, {k}, 0) ; f {x} / {k}
f F.leaky_relu({x}) ; f F.hardtanh({x}) ; f torch.nan_to_num({x}) ; n torch.square({x})
f torch.reciprocal({x}) ; n {x}.clone() ; a {x}.detach() ; n {x}.contiguous() ; b ~{x}
r torch.logical_not({x}) ; i {x} // {k} ; i {x} % {k} ; i torch.bitwise_not({x}) ; i {x} << {k}
i {x} >> {k} ; nn {x} + {y} ; nn {x} - {y} ; nn {x} * {y} ; ff {x} / {y} ; aa {x} + {y} ; aa {x} * {y}
nn torch.add({x}, {y}, alpha={k}) ; nn torch.maximum({x}, {y}) ; nn torch.minimum({x}, {y})
ff torch.fmax({x}, {y}) ; ff torch.copysign({x}, {y}) ; bnn torch.where({x}, {y}, {z})
brr torch.where({x}, {y}, {z}) ; br {y}.masked_fill({x}, {k}) ; ii {x} & {y} ; ii {x} | {y}
bb {x} ^ {y} ; rr torch.logical_and({x}, {y}) ; rr torch.logical_or({x}, {y}) ; n torch.zeros_like({x})
n torch.ones_like({x}) ; n torch.full_like({x}, {s}) ; n {x}.new_zeros({x}.shape) ; f {x}.to({t})
n {x}.to({t}) ; if {x}.type_as({y}) ; b {x}.to({t}) ; i {x}.to({t}) ; c torch.conj({x}) ; c {x}.real
a torch.stack([{x}, {x}], {d}) ; nn torch.cat([{x}, {y}], {d}) ; aa torch.cat([{x}, {y}], {d})
rr torch.stack([{x}, {y}]) ; n torch.tril({x}) ; n torch.triu({x}, {k}) ; n torch.amax({x}, {d})
n torch.amin({x}, {d}, keepdim=True) ; n torch.max({x}, {d}).values ; n torch.min({x}, {d}).values
n torch.max({x}) ; n torch.min({x}) ; r torch.any({x}, {d}) ; r torch.all({x}) ; i torch.sum({x}, {d})
i torch.sum({x}) ; i torch.cumsum({x}, {d}) ; b torch.sum({x}, {d}) ; r torch.count_nonzero({x}, {d})
n torch.flip({x}, [{d}]) ; a torch.roll({x}, {k}, {d}) ; n F.pad({x}, (1, {k})) ; n F.pad({x}, (-1, {k}), value={s})
nl torch.index_select({x}, {d}, {y}.flatten() % {x}.size({d})) ; nl torch.gather({x}, {d}, {y} % {x}.size({d}))
nl {x}[{y}.flatten() % {x}.size(0)] ; nl {x}[..., {y}.flatten() % {x}.size(-1)] ; nl torch.take_along_dim({x}, {y} % {x}.size({d}), {d})
nl F.embedding({y} % {x}.size(0), {x}) ; ln torch.scatter({y}, {d}, {x} % {y}.size({d}), {s}) ; l F.one_hot({x} % 5, 5)
nn torch.addcmul({x}, {y}, {y}, value={k}) ; l torch.arange({x}.size({d}), device={x}.device)
n {x} + torch.arange({x}.size(-1)) ; n torch.max_pool1d({x}, 2) ; n {x}.repeat_interleave(2, {d})
n torch.diag_embed({x}) ; n {x}.repeat(2, *[1] * ({x}.dim() - 1)) ; l {x}.float() ; b {x}.float()
n torch.slice_scatter({x}, torch.zeros_like({x}[:1]), 0, 0, 1) ; n torch.select_scatter({x}, {x}.select({d}, 0), {d}, -1)
f torch.cummax({x}, {d}).values ; f torch.sqrt(torch.abs({x})) ; n torch.unflatten({x}, -1, (1, -1))
f torch.frac({x} * 2.0) ; nn torch.lerp({x}, {y}, 0.5)
ii torch.gcd({x}, {y}) ; n torch.rot90({x}) ; n torch.tile({x}, (2, 1)) ; n torch.diff({x}, dim={d}) ; ii {x} ** ({y} % 3)
n {x}.to(torch.int8) ; n {x}.to(torch.int16) ; i {x} * {k} ; i -{x} ; i torch.prod({x}, {d}) ; i torch.cumprod({x} % 3, {d})
nl {x}[-1 - {y}.flatten() % {x}.size(0)] ; nl {x}[:, {y}.flatten() % {x}.size(1)] ; n F.pad({x}, (1, 1), mode="circular")
n torch.amax({x}, (0, -1)) ; n torch.trace({x}) ; n torch.hstack([{x}, {x}]) ; n torch.atleast_3d({x}) ; rr torch.logical_xor({x}, {y})
nn torch.block_diag({x}, {y}) ; n torch.dstack([{x}, {x}]) ; f F.adaptive_max_pool1d({x}, 2) ; f F.max_pool2d({x}[None], 2, padding=1)
f F.threshold({x}, 0.1, 2.0) ; f F.hardshrink({x}) ; f F.relu6({x}) ; f torch.nan_to_num({x}, 1.0, 2.0) ; n torch.tril({x}, -1)
nl torch.index_put({x}, ({y} % {x}.size(0),), {x}.new_ones(()), accumulate=True) ; nl torch.index_fill({x}, {d}, {y}.flatten() % {x}.size({d}), {k})
n torch.cummin({x}, {d}).values ; n torch.unfold_copy({x}, {d}, 2, 1) ; n F.pixel_unshuffle({x}[None, None, :2, :2], 2) ; f F.unfold({x}[None, None], 2)
nl torch.scatter_reduce({x}, {d}, {y} % {x}.size({d}), {x}, "amax") ; n torch.msort({x}) ; f torch.copysign({x}, -1.0)
"""
# The same of exact operands alone: a last bit may decide.
STEP = """
f torch.floor({x}) ; f torch.ceil({x}) ; f torch.round({x}) ; f torch.trunc({x}) ; f torch.sign({x})
f {x}.detach() // {s} ; f {x} % {s} ; f torch.fmod({x}, {s}) ; f torch.isnan({x}) ; f torch.isinf({x}) ; n {x} > {k}
n {x} <= {s} ; nn {x} < {y} ; nn {x} >= {y} ; nn {x} == {y} ; rr {x} != {y} ; n torch.argmax({x}, {d})
n torch.argmin({x}, {d}, keepdim=True) ; n torch.max({x}, {d}).indices ; n torch.argmax({x})
f torch.topk({x}, 1, {d}).values ; f torch.sort({x}, {d}).values ; f {x}.bool() ; n {x}.bool() ; f {x}.long()
f torch.div({x}, {s}, rounding_mode="floor") ; nn torch.div({x}, {y}, rounding_mode="trunc")
ii {x} % {y} ; ff torch.remainder({x}, {y}) ; f torch.heaviside({x}.detach(), {x}.detach()) ; f torch.signbit({x})
f {x}.int() ; fi {x}.type_as({y}) ; f {x}.to(torch.uint8) ; ff torch.isclose({x}, {y}) ; f torch.bucketize({x}, torch.arange(4.0))
f torch.cummax({x}, {d}).indices ; f torch.searchsorted(torch.arange(4.0), {x})
n torch.sort({x}, dim={d}, stable=True).indices ; n torch.sort({x}, {d}, True).values ; f torch.median({x}.clone(), {d}).values ; f {x}.to(torch.int8)
n torch.kthvalue({x}, 1, {d}).values ; f torch.median({x}.clone()) ; n torch.argsort({x}, dim={d}, stable=True) ; n torch.isin({x}, {x}.flatten()[:2])
n torch.aminmax({x}).max ; n torch.argmin({x}) ; f torch.nextafter({x}, {x} + 1) ; f torch.sgn({x}) ; nn torch.eq({x}, {y}).all()
"""
# Library functions and sums: to the last bits alone.
SMOOTH = """
f torch.exp({x}) ; f torch.tanh({x}) ; f torch.sigmoid({x}) ; f torch.sin({x}) ; f torch.cos({x})
f torch.log1p(torch.abs({x})) ; f torch.rsqrt(torch.abs({x}) + 1) ; f torch.erf({x}) ; f F.gelu({x})
f F.gelu({x}, approximate="tanh") ; f F.silu({x}) ; f F.softplus({x}) ; f F.elu({x}) ; f torch.expm1({x})
f torch.atan({x}) ; f F.logsigmoid({x}) ; f {x} ** 2 ; f {x} ** 3 ; f torch.abs({x}) ** 0.5 ; f F.mish({x})
f F.hardswish({x}) ; f torch.sum({x}, {d}) ; f torch.sum({x}) ; f torch.mean({x}, {d}, keepdim=True) ; f {x}.mean()
f torch.var({x}, {d}) ; f torch.std({x}, {d}, correction=0) ; f torch.softmax({x}, {d}) ; f torch.log_softmax({x}, {d})
f torch.logsumexp({x}, {d}) ; f torch.cumsum({x}, {d}) ; f torch.prod({x}, {d}) ; f torch.norm({x}, dim={d})
f torch.linalg.vector_norm({x}, 1) ; f F.layer_norm({x}, {x}.shape[-1:]) ; f F.normalize({x}, dim={d}) ; f torch.nansum({x}, {d})
f F.rms_norm({x}, {x}.shape[-1:]) ; ff {x} @ {y} ; ff F.linear({x}, {y}) ; ff torch.matmul({x}, {y}.mT) ; f {x} @ {x}.mT
ff torch.hypot({x}, {y}) ; ff torch.atan2({x}, {y}) ; ff torch.logaddexp({x}, {y}) ; ff torch.lerp({x}, {y}, 0.3)
fff torch.addcdiv({x}, {y}, {z}.abs() + 1) ; ff F.mse_loss({x}, {y}) ; ff F.smooth_l1_loss({x}, {y}) ; f torch.cumprod({x}, {d})
f torch.addmm({x}, {x}, {x}.mT) ; fl torch.index_add({x}, 0, {y}.flatten() % {x}.size(0), {x}.new_ones({y}.numel(), *{x}.shape[1:]))
fl torch.scatter_add({x}, {d}, {y} % {x}.size({d}), torch.ones_like({x})) ; f F.avg_pool1d({x}, 2) ; f F.group_norm({x}, 1)
fl torch.index_put({x}, ({y} % {x}.size(0),), {x}[0], accumulate=True) ; f torch.einsum("...i,...j->...ij", {x}, {x})
c torch.abs({x}) ; c torch.view_as_real({x}) ; c {x} * {x} ; c torch.sum({x}) ; f torch.complex({x}, {x}) ; f torch.trapezoid({x})
f torch.cdist({x}, {x}) ; f torch.diff({x}) ; f F.glu({x}, {d}) ; fl F.cross_entropy({x}, {y} % {x}.size(1)) ; f torch.logcumsumexp({x}, {d})
f F.instance_norm({x}) ; f F.batch_norm({x}, None, None, training=True) ; f F.local_response_norm({x}, 2) ; ff F.huber_loss({x}, {y})
ff F.kl_div({x}, {y}) ; ff F.cosine_similarity({x}, {y}) ; ff F.pairwise_distance({x}, {y}) ; f F.softmin({x}, {d}) ; f F.selu({x})
f F.celu({x}) ; f torch.std_mean({x}, {d})[1] ; f torch.var_mean({x})[0] ; f torch.nanmean({x}, {d}) ; f torch.lgamma({x}.abs() + 1)
f torch.digamma({x}.abs() + 1) ; f torch.sinc({x}) ; f torch.exp2({x}) ; f torch.log(torch.abs({x}) + 1) ; f torch.asinh({x}) ; f torch.erfc({x})
f torch.tan({x} / 4) ; f torch.logit(torch.sigmoid({x})) ; f torch.special.i0e({x}) ; f torch.renorm({x}, 2, 0, 1.0) ; f F.softsign({x})
ff torch.cross({x}[..., :3], {y}[..., :3].flip(-1), dim=-1) ; ff torch.tensordot({x}, {y}, 1) ; f torch.linalg.det({x} @ {x}.mT + 1) ; f torch.fft.rfft({x}).abs()
f F.avg_pool2d({x}[None], 2) ; f F.adaptive_avg_pool1d({x}, 3) ; f F.interpolate({x}[None], 5, mode="linear") ; f torch.cov({x}) ; f torch.quantile({x}, 0.3)
ff F.binary_cross_entropy_with_logits({x}, {y}.sigmoid()) ; ff F.gaussian_nll_loss({x}, {y}, {y}.exp()) ; f torch.xlogy({x}, {x}.abs() + 1)
f F.interpolate({x}, scale_factor=2.0) ; f F.dropout({x}, 0.5) ; f torch.rand_like({x}) + {x} ; f torch.randn_like({x}) - 2 * torch.randn_like({x}) ; n torch.randint_like({x}, 9) - 2 * torch.randint_like({x}, 9) ; f torch.kron({x}.flatten()[:9], {x})
"""
VIEW = """
a {x}.t() ; a {x}.transpose({d}, -1) ; a {x}[1:] ; a {x}[..., ::2] ; a {x}[None] ; a {x}[-1] ; a {x}.select({d}, 0)
a {x}.unsqueeze({d}) ; a {x}.squeeze() ; a {x}.expand(3, *{x}.shape) ; a {x}.reshape(-1) ; a {x}.view(-1) ; a {x}.flatten()
a {x}.narrow({d}, 0, 1) ; a {x}.diagonal() ; a {x}.movedim(0, -1) ; a {x}.unbind({d})[0] ; a {x}.chunk(2, {d})[0]
a {x}.unfold({d}, 2, 1) ; a {x}.mT ; a {x}.view_as({x}) ; a {x}[:, 1:] ; a {x}.permute(*range({x}.dim() - 1, -1, -1))
a {x}.split(2, {d})[-1] ; a {x}[1:-1] ; a {x}.expand_as({x}) ; f {x}.view({x}.dtype) ; l {x}.view(torch.float64)
a {x}.reshape({x}.size(0), -1) ; a {x}.swapaxes(0, {d}) ; a {x}[:, None] ; a {x}.tensor_split(2)[1] ; a {x}.ravel()
a torch.as_strided({x}, ({x}.size(0),), (1,)) ; a torch.broadcast_to({x}, (2, *{x}.shape)) ; a {x}[..., 0] ; a {x}[::3]
"""
# Statements. What stands at the left is written.
WRITE = """
n {x}.mul_({k}) ; n {x}.add_({k}) ; f {x}.mul_({s}) ; nn {x}.add_({y}) ; nn {x}.copy_({y}) ; n {x}.zero_() ; n {x}.fill_({k})
f {x}.clamp_(-1, 1) ; f~ {x}.exp_() ; f~ {x}.tanh_() ; f {x}.relu_() ; n {x}[1:] = {k} ; n {x}[0] += {k} ; nn {x}[0] = {y}
nn {x}[..., :1] = {y} ; br {y}[{x}] = {k} ; br {y}.masked_fill_({x}, {k}) ; nl {x}.index_fill_(0, {y}.flatten() % {x}.size(0), {k})
nl~ {x}.index_add_(0, {y}.flatten() % {x}.size(0), {x}.new_ones({y}.numel(), *{x}.shape[1:])) ; nn {x}.sub_({y}, alpha=2)
nl {x}[{y}.flatten() % {x}.size(0)] = {k} ; nn~ {x}.addcmul_({y}, {y}) ; n {x}.t().mul_({k}) ; n {x}[..., ::2].add_({k}) ; n {x}.neg_()
nn torch.add({x}, {y}.clone(), out={x}) ; n torch.add({x}, {x}, out={x}) ; n {x}.diagonal().fill_({k}) ; n {x}.view(-1)[1:].add_({k}) ; nl {x}.scatter_(0, {y} % {x}.size(0), {k})
n {x}[1:].copy_({x}[:-1].clone()) ; ff~ {x}.lerp_({y}, 0.5) ; n {x}.tril_() ; n {x}.clamp_(min={k}) ; i {x}.bitwise_xor_({k}) ; n {x}[:, 0] = {x}[0, :1] ; nn {x}[1:] += {y}[:1]
nl~ {x}.scatter_add_(0, {y} % {x}.size(0), {x}.clone()) ; nl {x}[:, {y}.flatten() % {x}.size(1)] = {k} ; nn {x}.masked_fill_({y} > {k}, 0) ; b {x}.logical_not_() ; bb {x} &= {y}
n {x}.unsqueeze_(0) ; n {x}.t_() ; n {x}.transpose_(0, -1) ; n {x}.squeeze_() ; f~ {x}.cumsum_(0)
nl {x}.index_copy_(0, {y}.flatten()[:1] % {x}.size(0), {x}[:1] * 2) ; c {x}.mul_(2) ; c {x}.real.add_(1)
"""


def lines(text):
    pieces = [piece.strip() for line in text.splitlines() for piece in line.split(";")]
    return [tuple(piece.split(" ", 1)) for piece in pieces if piece]


# Name -> (weight, result exact: as the operands | never, exact operands needed, templates).
FAMILIES = {
    "exact": (30, True, False, lines(EXACT)),
    "step": (8, True, True, lines(STEP)),
    "smooth": (24, False, False, lines(SMOOTH)),
    "view": (20, True, False, lines(VIEW)),
    "write": (14, True, False, lines(WRITE)),
    "layer": (8, False, False, lines(LAYER)),
    "library": (14, False, False, lines(LIBRARY)),
    "pick": (4, True, True, lines(PICK)),
    "mixed": (14, False, False, lines(MIXED)),
    "other write": (10, True, False, lines(OTHER_WRITE)),
    "under": (4, False, False, lines(UNDER)),
}
