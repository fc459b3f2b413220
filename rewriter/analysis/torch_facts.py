"""What torch's functions, methods and layers return, and what is known of them. Names only: torch
is not loaded."""

from .torch_returns import FUNCTIONAL, FUNCTIONS, METHODS


def _read(text):
    return dict(word.split(":") for word in text.split())


def _words(text):
    return frozenset(text.split())


METHOD = _read(METHODS)
FUNCTION = _read(FUNCTIONS)
FUNCTIONAL_ = _read(FUNCTIONAL)
METHOD.update(
    split="U",
    tolist="O",
    type="T",
    numpy="O",
    stft="T",
    where="T",
    unique="T",
    norm="T",
    new_tensor="T",
)
METHOD.update(einsum="T", is_floating_point="B", is_complex="B", storage="O")
FUNCTION.update(
    split="U!",
    tensor="T",
    as_tensor="T",
    from_numpy="T",
    norm="T!",
    unique="T!",
    einsum="T",
    cdist="T",
)
FUNCTION.update(
    meshgrid="U", stft="T!", broadcast_tensors="U", tensordot="T!", unique_consecutive="T!"
)
FUNCTION.update(
    is_tensor="B", is_grad_enabled="B", lu="O", atleast_1d="T", atleast_2d="T", block_diag="T"
)

# Without a `dim` these give one tensor, with one a pair.
PAIR_WITH_DIM = _words("max min median nanmedian mode kthvalue cummax cummin sort topk")
ALWAYS_PAIR = _words("sort topk kthvalue mode cummax cummin aminmax")

# Give a scalar tensor when no dim is named.
REDUCTIONS = _words(
    """
    sum mean max min prod any all std var median nanmedian nansum nanmean logsumexp argmax argmin
    amax amin norm
    count_nonzero
    """
)
BOOL_RESULT = _words(
    """
    any all eq ne lt le gt ge isnan isinf isfinite isneginf isposinf isclose logical_and logical_or
    logical_not
    logical_xor isin signbit greater greater_equal less less_equal not_equal
    """
)
INT_RESULT = _words(
    "argmax argmin argsort count_nonzero nonzero bincount searchsorted bucketize multinomial long"
)
# Of an unsigned byte tensor these give bytes.
BYTES_STAY = _words("any all")
# Elementwise, the same shape out as in, and mostly the same dtype (KEEPS says which, and where).
SAME = _words(
    """
    abs neg relu clamp clamp_min clamp_max clip detach clone contiguous requires_grad_ dropout round
    floor ceil
    trunc sign negative positive zero_ fill_ relu_ zeros_like ones_like empty_like rand_like
    randn_like
    full_like cumsum flip roll masked_fill masked_fill_ nan_to_num tril triu leaky_relu hardtanh
    relu6 elu_
    relu_ add_ sub_ mul_ div_ copy_ clamp_ detach_ square
    """
)
SAME_FLOAT = _words(
    """
    exp log sqrt rsqrt sin cos tan tanh sigmoid erf log1p expm1 log2 log10 exp2 softmax log_softmax
    gelu silu
    mish softplus elu selu celu hardswish hardsigmoid logsigmoid normalize reciprocal atan asin acos
    sinh cosh
    softsign
    """
)
# The dtype stays what it is for every dtype that the operator takes.
KEEPS = _words(
    """
    neg negative positive relu relu_ clone contiguous detach detach_ dropout round floor ceil trunc
    sign zero_ fill_ zeros_like ones_like empty_like rand_like randn_like full_like flip roll
    masked_fill masked_fill_ nan_to_num tril triu leaky_relu hardtanh relu6 elu_ add_ sub_ mul_ div_
    copy_ clamp_ requires_grad_
    """
)
# It stays for numbers that are not bool (`clamp` with bounds of the tensor's own category).
KEEPS_NUMBERS = KEEPS | _words("abs clamp clamp_min clamp_max clip square")
# It stays for floating-point numbers; integers, and bool, become int64.
SUMS_UP = _words("sum prod nansum cumsum cumprod")
# Floating-point in, floating-point out, and complex numbers are refused.
REAL_ONLY = _words(
    """
    erf softmax log_softmax gelu mish softplus elu selu celu hardswish hardsigmoid logsigmoid
    leaky_relu
    """
)
# Under autocast, on some device, these are computed in float32 (torch's documentation of `amp`).
AUTOCAST = _words(
    """
    acos asin cosh cumprod cumsum erfinv exp expm1 log log10 log1p log2 log_softmax logsumexp
    nansum norm normalize pow prod reciprocal rsqrt sinh softmax softmin softplus std sum tan var
    """
)
# These give a dense tensor in memory of its own, whatever they are given.
MAKES = (SAME | SAME_FLOAT | REDUCTIONS | BOOL_RESULT | INT_RESULT) - _words(
    """
    detach contiguous requires_grad_ dropout positive long zero_ fill_ relu_ masked_fill_ elu_ add_
    sub_ mul_ div_ copy_ clamp_ detach_ tril triu
    """
)
MAKES |= _words(
    """
    add sub mul div true_divide multiply subtract maximum minimum matmul mm bmm addmm linear cat
    stack gather cdist outer conv1d conv2d conv3d layer_norm batch_norm group_norm embedding where
    cross_entropy mse_loss l1_loss nll_loss binary_cross_entropy binary_cross_entropy_with_logits
    smooth_l1_loss huber_loss quantile cumprod pow
    """
)
# Sparse tensors are refused, or come out as strided ones.
STRIDED = _words(
    """
    sigmoid exp log softmax log_softmax gelu silu mean max min clamp clip clamp_min clamp_max cumsum
    flip quantile masked_fill isfinite maximum minimum argmax argmin amax amin conv1d conv2d
    conv3d layer_norm cross_entropy gt lt ge le
    """
)
# Of a tensor whose axes lie in another order they give one of their own order.
REORDERS = _words(
    "contiguous softmax log_softmax logsigmoid cumsum roll tril triu masked_fill normalize"
)
# In place: the tensor itself comes back.
RETURNS_ITSELF = _words(
    "zero_ fill_ relu_ masked_fill_ add_ sub_ mul_ div_ copy_ clamp_ index_add_ scatter_add_"
)
# In place, with another dtype, shape or memory afterwards.
SCRAMBLES = _words(
    """
    resize_ resize_as_ set_ t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_ as_strided_
    sparse_resize_ sparse_resize_and_clear_ swap_tensors
    """
)
BINARY = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "true_divide": "/",
    "multiply": "*",
    "subtract": "-",
    "maximum": "+",
    "minimum": "+",
}
# Their arguments, beside the tensor itself, are sizes: a tensor among them is read on the host.
SIZED = _words("view reshape expand repeat tile unflatten new_zeros new_ones new_empty")
SIZED_FACTORIES = _words("zeros ones empty rand randn eye")
FACTORIES = _words(
    "rand randn zeros ones empty full randint arange linspace eye tensor randperm normal"
)
CASTS = {
    "float": ("float32", "float"),
    "double": ("float64", "float"),
    "half": ("float16", "float"),
    "bfloat16": ("bfloat16", "float"),
    "long": ("int64", "int"),
    "int": ("int32", "int"),
    "bool": ("bool", "bool"),
}
DTYPES = {
    **dict.fromkeys(
        ["float", "float32", "float64", "double", "half", "float16", "bfloat16"], "float"
    ),
    **dict.fromkeys(["long", "int", "int64", "int32", "int16", "int8", "uint8", "short"], "int"),
    "bool": "bool",
}
DTYPE_NAMES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
}
LEGACY_TENSORS = {
    "Tensor": "float",
    "FloatTensor": "float",
    "LongTensor": "int",
    "BoolTensor": "bool",
    "IntTensor": "int",
    "HalfTensor": "float",
}

# Methods that only tensors have (not ndarrays, builtin containers, frames or modules).
_SHARED = _words(
    """
    to cuda cpu half float double type apply_ item tolist numpy abs add all any argmax argmin clip
    copy cumprod
    cumsum diagonal dot fill_ flatten max mean min nonzero prod ravel repeat requires_grad_ reshape
    resize round
    size sort split squeeze std storage sub sum swapaxes take trace transpose values indices index
    count
    data_ptr view var isin map_ where rename mul div floordiv mod pow eq ne lt le gt ge median mode
    quantile
    bool int long char backward register_hook is_complex is_floating_point bfloat16 short diff log
    exp sqrt set_
    dequantize conj imag real inverse norm rsub neg share_memory is_shared names device dtype shape
    """
)
ONLY_TENSOR_METHODS = frozenset(
    n for n in METHOD if not n.startswith("_") and n not in _SHARED and not n.startswith("is_")
)

# Methods by which an input of `forward` is taken to be a tensor, though other objects have them.
SUGGESTIVE = _words(
    """
    size dim sum mean max min any all abs float half long exp log sqrt norm std var prod view
    reshape transpose flatten argmax argmin cumsum item tolist clamp nonzero squeeze repeat cumprod
    round sort argsort topk new_zeros new_ones new_empty new_full new_tensor cpu cuda numpy bool int
    dot ravel trace unique
    """
)
SUGGESTIVE_ATTRIBUTES = _words("shape ndim dtype device is_cuda requires_grad")

# Of numbers, and of lists, these give a NumPy scalar.
NUMPY_ELEMENTWISE = _words(
    "sqrt exp log log2 log10 log1p expm1 sin cos tan tanh ceil floor abs power cbrt square lcm gcd"
)
NUMPY_REDUCTIONS = _words("sum prod mean max min std var any all")

TENSOR_ATTRIBUTES = _words("data grad T mT H mH real imag")
BOOL_ATTRIBUTES = _words(
    "requires_grad is_cuda is_leaf is_sparse is_quantized is_meta is_cpu is_mps is_nested is_xpu"
)

_TUPLE_LAYERS = _words("LSTM GRU RNN LSTMCell MultiheadAttention AdaptiveLogSoftmaxWithLoss")
_CONTAINERS = _words("ModuleList ModuleDict ParameterList ParameterDict Module")
_LAYERS = _words(
    """
    Linear Bilinear LazyLinear Identity Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d
    ConvTranspose3d
    LazyConv1d LazyConv2d LazyConv3d BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm
    LazyBatchNorm1d
    LazyBatchNorm2d GroupNorm LayerNorm RMSNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d
    LocalResponseNorm
    ReLU ReLU6 RReLU LeakyReLU PReLU ELU SELU CELU GELU GLU SiLU Mish Sigmoid Tanh Softmax Softmax2d
    LogSoftmax
    Softmin Softplus Softsign Softshrink Hardtanh Hardswish Hardsigmoid Hardshrink Tanhshrink
    Threshold
    LogSigmoid Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout Embedding
    EmbeddingBag
    MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d AdaptiveAvgPool1d AdaptiveAvgPool2d
    AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d LPPool1d LPPool2d
    FractionalMaxPool2d MaxUnpool2d Upsample UpsamplingNearest2d UpsamplingBilinear2d PixelShuffle
    PixelUnshuffle ChannelShuffle Flatten Unflatten Fold Unfold ZeroPad2d ReflectionPad1d
    ReflectionPad2d
    ReplicationPad2d ConstantPad1d ConstantPad2d CosineSimilarity PairwiseDistance Sequential
    RNNCell GRUCell
    CrossEntropyLoss MSELoss L1Loss NLLLoss BCELoss BCEWithLogitsLoss SmoothL1Loss HuberLoss
    KLDivLoss CTCLoss
    TransformerEncoder TransformerEncoderLayer TransformerDecoder TransformerDecoderLayer
    Transformer
    HingeEmbeddingLoss MarginRankingLoss TripletMarginLoss CosineEmbeddingLoss PoissonNLLLoss
    GaussianNLLLoss
    """
)
# At least one axis comes out.
_RANKED = _words(
    """
    Linear LazyLinear Conv1d Conv2d Conv3d LayerNorm RMSNorm BatchNorm1d BatchNorm2d GroupNorm
    Embedding
    """
)


# They work in their parameters' dtype, a floating-point one, and give a new dense tensor.
FLOAT_LAYERS = _words(
    """
    Linear Bilinear LazyLinear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d
    LazyConv1d LazyConv2d LazyConv3d BatchNorm1d BatchNorm2d BatchNorm3d GroupNorm LayerNorm RMSNorm
    Embedding PReLU
    """
)
# They refuse integers, and give a new dense tensor.
_REFUSING_LAYERS = _words("GELU SiLU Mish ELU SELU CELU Softplus LogSigmoid Softmax LogSoftmax")
NEW_LAYERS = FLOAT_LAYERS | _REFUSING_LAYERS | _words("ReLU Sigmoid Tanh LeakyReLU")
# They give floats, of floats and integers alike; or refuse integers.
FLOATING_LAYERS = FLOAT_LAYERS | _REFUSING_LAYERS | _words("Hardswish Hardsigmoid")


def layer(name):
    """("tensor" | "tuple" | "container", least rank of the output) of the class `torch.nn.<name>`,
    or None."""
    if name in _LAYERS:
        return "tensor", int(name in _RANKED)
    if name in _TUPLE_LAYERS:
        return "tuple", 0
    return ("container", 0) if name in _CONTAINERS else None
