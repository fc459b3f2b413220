"""Programs written to break the codemod: safe fixes keep all that they show in eager, and code
without breaks has no finding that is none."""

import pytest

pytest.importorskip("torch")

from . import support
from .written_programs import calls, cases, shown

# Each of these behaved differently after safe fixes once.
_ONCE = frozenset(
    """
    loop_break while_break inplace_f_relu inplace_later_call caller_mutates_result
    helper_returned_alias clamp_float_on_int2 clamp_bool dropout_layer_int maxpool_int
    upsample_uint8 uint8_any global_number_moved number_shift_raises clamp_optional accum_global_i
    setattr_nfkc outside_attr setattr_attr torch_global_none torch_for_shadow square_bool
    nograd_decorator state_buffer_update alias_list_store alias_is_test requires_grad_after
    masked_expanded_target class_level_override_relu replaced_layer d_tabs d_var_only_one2
    pool_indices hook_alias dictattr_object_set roll_4d channels_last_sides mixed_order
    escaped_then_written escaped_attr_written returned_twice
    dict_class_patched dict_class_patched_by_name dict_own_getattribute dict_own_getitem
    leaf_flag_is_int block_name_deleted block_under_locals block_under_eval class_rebound
    class_is_parameter class_of_outer_function function_of_torch_patched where_patched
    setattr_owner_rebound setattr_owner_raises leaf_in_a_transform
    """.split()
)
_BREAKS = {"c_np_random", "c_time", "c_copytensor", "c_warn", "c_warn_mod"}  # these do break
_ALL = [
    c
    for kind in ("attack", "shadowed", "holders", "disguise", "real", "clean")
    for c in cases(kind)
]


def _unchanged(case, scope):
    fixed = support.fixed(case.source, scope=scope).source.text
    for call in calls(case) if fixed != case.source else ():
        before, after = (shown(case, s, *call) for s in (case.source, fixed))
        assert before == after, f"{case.name} {call}:\n{fixed}"


@pytest.mark.parametrize("case", [c for c in _ALL if c.name in _ONCE], ids=lambda c: c.name)
def test_what_differed_once(case):
    _unchanged(case, "all")


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["forward", "all"])
def test_safe_fixes_keep_everything(scope):
    for case in _ALL:
        _unchanged(case, scope)


@pytest.mark.parametrize("case", [c for c in cases("clean") if c.name not in _BREAKS])
def test_clean_programs_have_no_error(case):
    assert [f.code for f in support.found(case.source) if f.level == "error"] == []
