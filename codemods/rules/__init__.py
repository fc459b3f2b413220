"""One rule a file, or a few of one family; this is the list of them all."""

from .branches.bool_operator import BoolOperator
from .branches.chains_and_asserts import BuiltinOnTensor, ChainedComparison, TensorAssert
from .branches.if_on_tensor import TensorIf
from .branches.raise_on_tensor import RaiseIf, RuntimeCheck
from .branches.tensor_loops import Accumulate, TensorFor
from .branches.tensor_while import TensorWhile
from .branches.ternary_on_tensor import TensorTernary
from .data_shapes.drawn_roll import DrawnRoll
from .data_shapes.dynamic_shape import DynamicShape, MissingSize
from .data_shapes.inplace_view import InPlaceView
from .data_shapes.scoped_capture import ScopedCapture
from .data_shapes.shape_branch import ShapeBranch
from .data_shapes.size_loop import SizeLoop
from .data_shapes.write_under_mask import MaskedWrite
from .draws.draws_and_clocks import Clock, PythonRandom, Seed
from .dynamic.context_manager import ContextManager
from .dynamic.dict_attribute import DictAttribute
from .dynamic.except_branch import ExceptBranch
from .dynamic.kept_generator import KeptGenerator
from .dynamic.run_time_code import CopiedTensor, DynamicCode, Introspection, ObjectIdentity
from .dynamic.set_attribute import SetAttribute
from .effects.attribute_counter import AttributeCounter
from .effects.cached_on_self import KeptOnSelf
from .effects.debugger import Debugger
from .effects.file_access import FileAccess
from .effects.housekeeping import Housekeeping
from .effects.logs import Logging
from .effects.prints import Print
from .effects.retained_gradient import RetainedGradient
from .effects.warnings_and_bars import ProgressBar, Warn
from .host.host_copy import HostCopy
from .host.host_read import HostNumber, HostRead, ToList
from .host.number_buffer import NumberBuffer
from .host.read_ahead import ReadAhead
from .host.tensor_as_int import ImplicitInt
from .host.tensor_text import TensorText
from .host.truth_function import TruthFunction
from .libraries.constant_block import ConstantBlock
from .libraries.constant_helper import ConstantHelper
from .libraries.custom_op import CustomOp
from .libraries.foreign import ForeignLibraryCall
from .libraries.numpy_scalars import NumpyLimits, NumpyScalar
from .migrations.attention import HandWrittenAttention
from .migrations.device_amp import DeviceAmp
from .migrations.full_logits import FullLogits
from .migrations.functorch import Functorch
from .migrations.torch_jit import TorchJit
from .misuse.compile_misuse import CompileInside, Deprecated, Swallowed, WrongMode
from .misuse.legacy import LegacyVariable, NewLeaf, RecurrentLayer
from .misuse.unused_noqa import UnusedNoqa

RULES = (
    HostRead(),
    HostNumber(),
    ToList(),
    HostCopy(),
    ImplicitInt(),
    TruthFunction(),
    NumberBuffer(),
    TensorText(),
    ReadAhead(),
    TensorIf(),
    TensorTernary(),
    ChainedComparison(),
    TensorWhile(),
    TensorFor(),
    TensorAssert(),
    BuiltinOnTensor(),
    RaiseIf(),
    RuntimeCheck(),
    Accumulate(),
    BoolOperator(),
    Print(),
    Logging(),
    Warn(),
    Debugger(),
    ProgressBar(),
    FileAccess(),
    AttributeCounter(),
    KeptOnSelf(),
    Housekeeping(),
    RetainedGradient(),
    SetAttribute(),
    DynamicCode(),
    Introspection(),
    CopiedTensor(),
    ObjectIdentity(),
    DictAttribute(),
    KeptGenerator(),
    ContextManager(),
    ExceptBranch(),
    DynamicShape(),
    ShapeBranch(),
    MissingSize(),
    MaskedWrite(),
    InPlaceView(),
    ScopedCapture(),
    DrawnRoll(),
    SizeLoop(),
    ForeignLibraryCall(),
    NumpyScalar(),
    NumpyLimits(),
    ConstantHelper(),
    ConstantBlock(),
    CustomOp(),
    PythonRandom(),
    Clock(),
    Seed(),
    TorchJit(),
    DeviceAmp(),
    Functorch(),
    HandWrittenAttention(),
    FullLogits(),
    UnusedNoqa(),
    CompileInside(),
    WrongMode(),
    Swallowed(),
    Deprecated(),
    LegacyVariable(),
    RecurrentLayer(),
    NewLeaf(),
)
BY_CODE = {rule.code: rule for rule in RULES}
