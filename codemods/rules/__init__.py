"""One rule a file, or a few of one family; this is the list of them all."""

from .attribute_counter import AttributeCounter
from .bool_operator import BoolOperator
from .calls import (
    Clock,
    DeepCopy,
    Dynamic,
    Files,
    Identity,
    ImplicitInt,
    PythonRandom,
    Seed,
    Signature,
    TruthFunction,
)
from .checks import RaiseIf, RuntimeCheck
from .constant_block import ConstantBlock
from .constant_helper import ConstantHelper
from .context_manager import ContextManager
from .custom_op import CustomOp
from .data_shapes import DynamicShape, MissingSize
from .debugger import Debugger
from .dict_attribute import DictAttribute
from .effects import ProgressBar, Warn
from .except_branch import ExceptBranch
from .foreign import Foreign
from .generators import KeptGenerator
from .host_copy import HostCopy
from .host_read import HostNumber, HostRead, ToList
from .inplace_view import InPlaceView
from .kept_on_self import KeptOnSelf
from .legacy import LegacyVariable, NewLeaf, RecurrentLayer
from .logic import BuiltinOnTensor, ChainedComparison, TensorAssert
from .logs import Logging
from .loops import Accumulate, TensorFor
from .masked import MaskedWrite
from .misuse import CompileInside, Deprecated, Swallowed, WrongMode
from .number_buffer import NumberBuffer
from .numpy_scalars import NumpyLimits, NumpyScalar
from .prints import Print
from .read_ahead import ReadAhead
from .rolled import DrawnRoll
from .scoped_capture import ScopedCapture
from .set_attribute import SetAttribute
from .shapes import ShapeBranch
from .size_loop import SizeLoop
from .tensor_if import TensorIf
from .tensor_ternary import TensorTernary
from .tensor_text import TensorText
from .tensor_while import TensorWhile

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
    Files(),
    AttributeCounter(),
    KeptOnSelf(),
    SetAttribute(),
    Dynamic(),
    Signature(),
    DeepCopy(),
    Identity(),
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
    Foreign(),
    NumpyScalar(),
    NumpyLimits(),
    ConstantHelper(),
    ConstantBlock(),
    CustomOp(),
    PythonRandom(),
    Clock(),
    Seed(),
    CompileInside(),
    WrongMode(),
    Swallowed(),
    Deprecated(),
    LegacyVariable(),
    RecurrentLayer(),
    NewLeaf(),
)
BY_CODE = {rule.code: rule for rule in RULES}
