"""What `without_gpu.Figures` says of each program: kernels, calls of the library, bytes and sectors
over what is needed at least. What moves more says why, or stands as a loss that is known."""

TABLE: dict[str, tuple[int, int, float, float]] = {
    "row gelu_chain": (1, 0, 1.00, 1.00),
    "row masked_softmax": (1, 0, 1.00, 1.00),
    "row column_sum": (2, 0, 1.00, 1.00),
    "row full_sum": (2, 0, 1.00, 1.00),
    "row cross_entropy": (2, 0, 1.00, 1.00),
    # rows are read again from the cache: faster than holding them
    "row rms_norm": (1, 0, 1.50, 1.00),
    "row add_layer_norm": (1, 0, 1.25, 1.00),
    "row swiglu": (1, 0, 1.00, 1.00),
    "row rope": (1, 0, 1.00, 1.00),
    "row transpose_add": (1, 0, 1.00, 1.00),
    # no program holds a row: it is read twice
    "row group_norm_silu": (1, 0, 1.50, 1.00),
    "row cumsum": (1, 0, 1.00, 1.00),
    # few rows: parts, their fold, and what uses it
    "row batch_norm_relu": (3, 0, 1.50, 1.00),
    "row dropout_residual": (1, 1, 1.00, 1.00),
    "row adamw": (1, 0, 1.00, 1.00),
    "row layer_norm backward": (3, 0, 1.02, 1.00),
    # sums over rows as parts
    "row rms_norm backward": (3, 0, 1.21, 1.00),
    # what was saved is read by the backward
    "row softmax backward": (2, 0, 1.40, 1.00),
    # sums over rows as parts
    "row RMSNorm": (3, 0, 1.23, 1.00),
    "row LayerNorm": (3, 0, 1.05, 1.00),
    "row SwiGLU": (2, 0, 1.00, 1.00),
    "row GeGLU": (2, 0, 1.00, 1.00),
    "row CrossEntropy": (3, 0, 1.00, 1.00),
    # what was saved is read by the backward
    "row Softmax": (2, 0, 1.40, 1.00),
    "row t copy + add": (1, 0, 1.00, 1.00),
    "row gelu of t copy": (1, 0, 1.00, 1.00),
    "row 3-d copy + add": (1, 0, 1.00, 1.00),
    "row relu to NHWC": (1, 0, 1.00, 1.00),
    "row NHWC + NCHW copy": (1, 0, 1.00, 1.00),
    "row pixels to planes": (1, 0, 1.00, 1.00),
    "row keys of heads": (1, 0, 1.00, 1.00),
    "row heads to rows + add": (1, 0, 1.00, 1.00),
    "row patches + places": (1, 0, 1.00, 1.00),
    # loss: 16 rows of bfloat16 that begin in the middle of a sector
    "row LayerNorm of patches": (1, 0, 1.00, 1.75),
    "row pixel_unshuffle + add": (1, 0, 1.00, 1.00),
    "row pixel_shuffle + add": (1, 0, 1.00, 1.00),
    "row interleaved rope": (1, 0, 1.00, 1.00),
    # parts of columns, their fold, and what uses it, which reads again
    "row GroupNorm of NHWC": (3, 0, 1.51, 1.00),
    "row softmax over W of NHWC": (1, 0, 1.00, 1.00),
    "row softmax of channels": (1, 0, 1.00, 1.00),
    "row norm of channels": (1, 0, 1.00, 1.00),
    # few programs have columns side by side: parts, and their fold
    "row sums of t copy": (2, 0, 1.00, 1.00),
    "relu": (1, 0, 1.00, 1.00),
    "leaky_relu": (1, 0, 1.00, 1.00),
    "gelu": (1, 0, 1.00, 1.00),
    "gelu by hand": (1, 0, 1.00, 1.00),
    "swish": (1, 0, 1.00, 1.00),
    "mish": (1, 0, 1.00, 1.00),
    "selu, odd sizes": (1, 0, 1.00, 1.00),
    "hardtanh of bfloat16": (1, 0, 1.00, 1.00),
    "sum of rows": (1, 0, 1.00, 1.00),
    "sum of columns": (2, 0, 1.00, 1.00),
    # rows of 4,095 begin in the middle of a sector
    "sum over the middle": (1, 0, 1.00, 1.05),
    "mean over the middle": (1, 0, 1.00, 1.05),
    "max over the middle": (1, 0, 1.00, 1.05),
    "prod over the middle": (1, 0, 1.00, 1.00),
    # rows of 4,095 begin in the middle of a sector
    "argmax over the middle": (1, 0, 1.00, 1.05),
    "argmin of rows": (1, 0, 1.00, 1.00),
    "argmax of columns": (2, 0, 1.01, 1.00),
    "variance over the middle": (1, 0, 1.00, 1.00),
    "sum of everything": (2, 0, 1.00, 1.00),
    # loss: the norm is a call of the library
    "frobenius norm": (1, 1, 1.50, 1.00),
    # no program holds a row: it is read twice
    "l1 norm of rows": (1, 0, 1.50, 1.00),
    "l2 norm of rows": (1, 0, 1.50, 1.00),
    "logsumexp of rows": (1, 0, 1.00, 1.00),
    # no program holds a row: it is read twice
    "softmax of rows": (1, 0, 1.50, 1.00),
    "log_softmax of rows": (1, 0, 1.00, 1.00),
    "softmax of channels": (1, 0, 1.00, 1.00),
    "log_softmax of 21 classes": (1, 0, 1.00, 1.00),
    "softmax over W of NHWC": (1, 0, 1.00, 1.00),
    "batch norm, inference": (2, 0, 1.00, 1.00),
    "instance norm": (1, 0, 1.00, 1.00),
    # no program holds a row: it is read twice
    "group norm": (1, 0, 1.50, 1.00),
    # parts of columns, their fold, and what uses it, which reads again
    "group norm of NHWC": (3, 0, 1.50, 1.00),
    "RMSNorm of channels": (1, 0, 1.00, 1.00),
    "LayerNorm of channels": (1, 0, 1.00, 1.00),
    # few rows: parts, their fold, and what uses it
    "LayerNorm of images": (3, 0, 1.47, 1.00),
    "normalize channels": (1, 0, 1.00, 1.00),
    # rows of odd length
    "max_pool1d": (1, 0, 1.00, 1.05),
    "max_pool2d": (1, 0, 1.00, 1.04),
    "max_pool2d, stride 2": (1, 0, 1.00, 1.01),
    "max_pool3d": (1, 0, 1.00, 1.05),
    # rows of odd length
    "avg_pool1d": (1, 0, 1.00, 1.05),
    "avg_pool2d": (1, 0, 1.00, 1.02),
    "avg_pool3d": (1, 0, 1.00, 1.07),
    "global average": (1, 0, 1.00, 1.00),
    "cumsum": (1, 0, 1.00, 1.00),
    "cumprod": (1, 0, 1.00, 1.00),
    "cumsum in reverse": (1, 0, 1.00, 1.00),
    # rows of odd length
    "cumsum, exclusive": (1, 0, 1.00, 1.06),
    "masked cumsum": (1, 0, 1.00, 1.00),
    "mse": (2, 0, 1.00, 1.00),
    "huber": (2, 0, 1.00, 1.00),
    "hinge": (2, 0, 1.00, 1.00),
    "kl_div": (3, 0, 1.00, 1.00),
    "cosine": (2, 0, 1.00, 1.00),
    "triplet": (2, 0, 1.00, 1.00),
    # loss: the maximum, the sum and the gather are kernels of their own
    "cross entropy of images": (6, 0, 1.35, 2.65),
    "linear, relu": (0, 1, 1.00, 1.00),
    # loss: what a product or convolution gives goes through memory
    "linear, swish, scale": (1, 1, 1.20, 1.00),
    "linear, sum, logsumexp": (1, 1, 1.22, 1.00),
    "linear, group norm, hardtanh": (1, 1, 1.20, 1.00),
    "linear, gelu, softmax": (1, 1, 1.20, 1.00),
    "linear, dropout of none, mean": (1, 1, 1.02, 1.00),
    "product of odd sizes": (0, 1, 1.00, 1.00),
    # loss: operands and zeros are stored by kernels of their own
    "product of odd sizes, bfloat16": (6, 1, 3.00, 1.04),
    # loss: what a product or convolution gives goes through memory
    "gated linear of bfloat16": (1, 2, 2.30, 1.00),
    "attention by hand": (1, 2, 9.00, 1.00),
    "conv, relu, bias": (1, 1, 2.32, 1.00),
    "conv, min, tanh": (1, 1, 8.42, 1.10),
    "conv, group norm, relu": (1, 1, 3.66, 1.00),
    "conv, instance norm, divide": (1, 1, 2.32, 1.04),
    "two convs, residual": (5, 2, 5.50, 1.00),
    "transposed conv, softmax, sigmoid": (1, 1, 2.78, 1.10),
    "conv3d, softmax, pool": (2, 1, 9.98, 1.14),
    "depthwise conv": (1, 0, 1.00, 1.04),
    "transposed view, add": (1, 0, 1.00, 1.00),
    "transposed copies, product": (1, 0, 1.00, 1.00),
    "transposed copy, flat": (1, 0, 1.00, 1.00),
    # rows of 4,097 begin in the middle of a sector
    "transposed copy of odd sizes": (1, 0, 1.00, 1.14),
    "NHWC and NCHW": (1, 0, 1.00, 1.00),
    "channels last, bias, sigmoid": (1, 0, 1.00, 1.00),
    "five axes, channels to the end": (1, 0, 1.00, 1.00),
    "windows": (1, 0, 1.00, 1.00),
    "channel shuffle": (1, 0, 1.00, 1.00),
    "batched transpose, bias, gelu": (1, 0, 1.00, 1.00),
}
