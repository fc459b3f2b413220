"""What torch's functions, methods and layers return, and what is known of them. Names only: torch
is not loaded."""

from ...lowering.opinfo import having, returns


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


METHOD = dict(returns("methods"))
FUNCTION = dict(returns("functions"))
FUNCTIONAL_ = dict(returns("functional"))
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

PAIR_WITH_DIM = having("pair_with_dim")
ALWAYS_PAIR = having("pair")

REDUCTIONS = having("reduces")
BOOL_RESULT = having("gives_bool")
INT_RESULT = having("gives_int64")
# Of an unsigned byte tensor these give bytes.
BYTES_STAY = _words("any all")
SAME = having("same_shape")
SAME_FLOAT = having("same_shape_float")
KEEPS = having("keeps_dtype")
# It stays for numbers that are not bool (`clamp` with bounds of the tensor's own category).
KEEPS_NUMBERS = KEEPS | having("keeps_dtype_but_bool")
SUMS_UP = having("sums_to_int64")
REAL_ONLY = having("refuses_complex")
AUTOCAST = having("autocast_float32")
MAKES = having("gives_new_dense")
STRIDED = having("no_sparse")
REORDERS = having("own_axis_order")
RETURNS_ITSELF = having("returns_itself")
SCRAMBLES = having("turns_in_place", "sets_memory_in_place", "sets_layout_in_place")
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
SIZED = having("sizes_after_tensor")
SIZED_FACTORIES = having("sizes_only")
FACTORIES = having("factory")
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

_SHARED = having("method_of_others")
ONLY_TENSOR_METHODS = frozenset(
    n for n in METHOD if not n.startswith("_") and n not in _SHARED and not n.startswith("is_")
)

SUGGESTIVE = having("suggests_tensor")
SUGGESTIVE_ATTRIBUTES = _words("shape ndim dtype device is_cuda requires_grad")

NUMPY_ELEMENTWISE = having("numpy_elementwise")
NUMPY_REDUCTIONS = having("numpy_reduces")

TENSOR_ATTRIBUTES = _words("data grad T mT H mH real imag")
BOOL_ATTRIBUTES = _words(
    "requires_grad is_cuda is_leaf is_sparse is_quantized is_meta is_cpu is_mps is_nested is_xpu"
)

_TUPLE_LAYERS = _words(
    "LSTM GRU RNN RNNBase LSTMCell MultiheadAttention AdaptiveLogSoftmaxWithLoss"
)
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


def layer(name: str) -> tuple[str, int] | None:
    """("tensor" | "tuple" | "container", least rank of the output) of the class `torch.nn.<name>`,
    or None."""
    if name in _LAYERS:
        return "tensor", int(name in _RANKED)
    if name in _TUPLE_LAYERS:
        return "tuple", 0
    return ("container", 0) if name in _CONTAINERS else None
