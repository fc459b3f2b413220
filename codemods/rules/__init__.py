"""One rule a file, or a few of one family; this is the list of them all."""

from .calls import Clock, DeepCopy, Dynamic, Files, ImplicitInt, PythonRandom, Seed, TruthFunction
from .checks import RaiseIf
from .data_shapes import DynamicShape, MissingSize
from .debugger import Debugger
from .foreign import Foreign
from .host_read import HostNumber, HostRead, ToList
from .legacy import LegacyVariable, RecurrentLayer
from .logs import Logging
from .loops import Accumulate, TensorWhile
from .masked import MaskedWrite
from .misuse import CompileInside, Deprecated, WrongMode
from .prints import Print
from .set_attribute import SetAttribute
from .shapes import ShapeBranch
from .tensor_if import TensorIf
from .tensor_ternary import TensorTernary

RULES = (
    HostRead(),
    HostNumber(),
    ToList(),
    ImplicitInt(),
    TruthFunction(),
    TensorIf(),
    TensorTernary(),
    TensorWhile(),
    RaiseIf(),
    Accumulate(),
    Print(),
    Logging(),
    Debugger(),
    Files(),
    SetAttribute(),
    Dynamic(),
    DeepCopy(),
    DynamicShape(),
    ShapeBranch(),
    MissingSize(),
    MaskedWrite(),
    Foreign(),
    PythonRandom(),
    Clock(),
    Seed(),
    CompileInside(),
    WrongMode(),
    Deprecated(),
    LegacyVariable(),
    RecurrentLayer(),
)
BY_CODE = {rule.code: rule for rule in RULES}
